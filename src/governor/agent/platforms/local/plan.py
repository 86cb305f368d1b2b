"""What to do about a delivery on this machine: which files to write and remove, and how each sidecar shall take it.

Pure: ``plan`` sees the delivery and what was observed, and touches nothing.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from governor.agent.platforms.local.files import RESOURCES, ResourceFile, file_key, is_config, resource_file
from governor.agent.storage import Intent, Journal
from governor.agent.verification.obstacles import reload_obstacles
from governor.agent.verification.resources import in_scope, loaded_digest
from governor.agent.verification.verdicts import Expected, Proof, Reading
from governor.domain.bundles import Delivery
from governor.domain.dapr.kinds import kind_of
from governor.domain.documents import ApplyPolicy, ResourceRef, Strategy, Unproven, resource_ref
from governor.values.trees import Manifest


class ObservedFile(msgspec.Struct, frozen=True):
    """A file in one of the directories, and the resources that it holds as far as it can be read."""

    digest: str
    manifests: tuple[Manifest, ...]


class ObservedSidecar(msgspec.Struct, frozen=True):
    """One sidecar before the change; ``current`` when its process started after the last file was written.

    ``released``: if it does not run, it ended by itself and will be started again by itself. ``external``: it is not
    ours to restart.
    """

    app_id: str
    before: Reading | None = None
    current: bool = False
    proofs: Mapping[ResourceRef, Proof] = {}
    released: bool = False
    external: bool = False

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self.before is not None and self.before.process is not None


class Observed(msgspec.Struct, frozen=True):
    """Everything that a plan depends on besides the delivery."""

    namespace: str
    files: Mapping[str, ObservedFile]
    journal: Journal
    sidecars: Sequence[ObservedSidecar]


class SidecarAction(enum.StrEnum):
    """How one sidecar takes a delivery."""

    KEEP = "keep"
    """Everything is proven for its present process."""
    RELOAD = "reload"
    """It takes the change while it runs."""
    AWAIT = "await"
    """Its present process, or the next if there is none, is newer than the files; only the proof is missing."""
    START = "start"
    """It is started after the write, and ended before it if it runs."""
    ROLL = "roll"
    """It is restarted after the write, when those before it in line have taken the change."""


class SidecarPlan(msgspec.Struct, frozen=True):
    """What one sidecar must do and show. ``obstacles`` says of which it cannot be shown in this way, and why."""

    app_id: str
    action: SidecarAction
    expected: tuple[Expected, ...]
    before: Reading | None = None
    kept: Mapping[ResourceRef, Proof] = {}
    obstacles: Mapping[ResourceRef, str] = {}


class Plan(msgspec.Struct, frozen=True):
    """What to do, in this order: write, remove, then each sidecar."""

    writes: tuple[ResourceFile, ...]
    removals: tuple[str, ...]
    intent: Intent
    config: str | None
    sidecars: tuple[SidecarPlan, ...]


class Rejection(msgspec.Struct, frozen=True):
    """Nothing of the delivery may be applied; the reason by resource."""

    reasons: Mapping[ResourceRef, str]


def plan(delivery: Delivery, observed: Observed) -> Plan | Rejection:
    """Decide what turns what is observed into what is delivered."""
    reasons = dict(_rejections(delivery, observed))
    if reasons:
        return Rejection(reasons)
    wanted = sorted((resource_file(each, observed.namespace) for each in delivery.resources), key=lambda it: it.rank)
    keys = {each.key for each in wanted}
    writes = tuple(each for each in wanted if _digest_of(each.key, observed) != each.digest)
    # A delivery's own removals need no extra care: only what this agent wrote is ever removed, and all of it that is
    # not wanted any more.
    removals = tuple(sorted(observed.journal.files - keys))
    intent = Intent(delivery.sequence, tuple(each.key for each in wanted), removals)
    config = next(filter(is_config, keys), None)
    sidecars = tuple(
        _sidecar_plan(each, _expected(each.app_id, wanted, delivery, observed), delivery.apply)
        for each in observed.sidecars
    )
    return Plan(writes, removals, intent, config, sidecars)


def _rejections(delivery: Delivery, observed: Observed) -> Iterator[tuple[ResourceRef, str]]:
    configurations = []
    for manifest in delivery.resources:
        ref = resource_ref(manifest, observed.namespace)
        if ref.kind == "Configuration":
            configurations.append(ref)
        reason = _rejection(ref, manifest, observed)
        if reason:
            yield ref, reason
    if len(configurations) > 1:
        names = ", ".join(ref.name for ref in configurations)
        for ref in configurations:
            yield ref, f"a sidecar takes one Configuration, this delivery has several: {names}; keep one"


def _rejection(ref: ResourceRef, manifest: Manifest, observed: Observed) -> str:
    if kind_of(manifest) is None:
        return f"{ref.kind} ({manifest.get('apiVersion')}) is no kind that a Dapr sidecar on this machine loads"
    if ref.namespace != observed.namespace:
        return f"the sidecars of this runtime are in namespace {observed.namespace!r}: a second one cannot be served"
    own = file_key(ref)
    if own in observed.files and own not in observed.journal.files:
        return f"the file {own} is there already and was not written by this agent: move it away"
    foreign = next((key for key in _foreign(observed) if _holds(observed.files[key], ref, observed.namespace)), None)
    return f"it is defined already in {foreign}, which is not this agent's: remove it there or here" if foreign else ""


def _foreign(observed: Observed) -> Iterator[str]:
    for key in sorted(observed.files):
        if key.startswith(f"{RESOURCES}/") and key not in observed.journal.files:
            yield key


def _holds(file: ObservedFile, ref: ResourceRef, namespace: str) -> bool:
    """A manifest without a namespace is loaded in each, so it clashes too."""
    return any(resource_ref(manifest, namespace) == ref for manifest in file.manifests)


def _digest_of(key: str, observed: Observed) -> str:
    return observed.files[key].digest if key in observed.files else ""


def _expected(
    app_id: str, wanted: Sequence[ResourceFile], delivery: Delivery, observed: Observed
) -> tuple[Expected, ...]:
    """What one sidecar must show: what is in its scope now, and that what was and is no longer is gone."""
    new = {each.ref: each.manifest for each in wanted if in_scope(each.manifest, app_id)}
    old = {ref: manifest for ref, manifest in _own(wanted, observed) if in_scope(manifest, app_id)}
    removed = {ref for ref in delivery.removals if ref.namespace == observed.namespace}
    refs = sorted({*new, *old, *removed})
    return tuple(Expected(ref, new.get(ref), old.get(ref)) for ref in refs)


def _own(wanted: Sequence[ResourceFile], observed: Observed) -> Iterator[tuple[ResourceRef, Manifest]]:
    """What this agent has on disk; a file that stays as it is counts as what it was made from, not as read again."""
    unchanged = {each.key: each for each in wanted if _digest_of(each.key, observed) == each.digest}
    for key in observed.journal.files & observed.files.keys():
        if key in unchanged:
            yield unchanged[key].ref, unchanged[key].manifest
            continue
        for manifest in observed.files[key].manifests:
            yield resource_ref(manifest, observed.namespace), manifest


def _sidecar_plan(sidecar: ObservedSidecar, expected: tuple[Expected, ...], policy: ApplyPolicy) -> SidecarPlan:
    if sidecar.external:
        return _external_plan(sidecar, expected)
    kept = {each.ref: sidecar.proofs[each.ref] for each in expected if _is_proven(each, sidecar)}
    open_points = tuple(each for each in expected if each.ref not in kept)
    if not sidecar.running:
        if sidecar.released and not any(each.changed for each in expected):
            return SidecarPlan(sidecar.app_id, SidecarAction.AWAIT, expected, sidecar.before)
        return SidecarPlan(sidecar.app_id, SidecarAction.START, expected, sidecar.before)
    if not open_points:
        return SidecarPlan(sidecar.app_id, SidecarAction.KEEP, expected, sidecar.before, kept)
    if sidecar.current and not any(each.changed for each in expected):
        return SidecarPlan(sidecar.app_id, SidecarAction.AWAIT, expected, sidecar.before)
    if policy.strategy is Strategy.ROLLING:
        return SidecarPlan(sidecar.app_id, SidecarAction.ROLL, expected, sidecar.before)
    obstacles = {**reload_obstacles(open_points, expected, sidecar.before), **_overtaken(open_points, sidecar)}
    if obstacles and policy.unproven is Unproven.RESTART:
        return SidecarPlan(sidecar.app_id, SidecarAction.START, expected, sidecar.before)
    return SidecarPlan(sidecar.app_id, SidecarAction.RELOAD, expected, sidecar.before, kept, obstacles)


def _external_plan(sidecar: ObservedSidecar, expected: tuple[Expected, ...]) -> SidecarPlan:
    """It shows what it can while it runs; the rest waits for its owner to restart it."""
    kept = {each.ref: sidecar.proofs[each.ref] for each in expected if _is_proven(each, sidecar)}
    open_points = tuple(each for each in expected if each.ref not in kept)
    if not open_points:
        return SidecarPlan(sidecar.app_id, SidecarAction.KEEP, expected, sidecar.before, kept)
    if not sidecar.running or (sidecar.current and not any(each.changed for each in expected)):
        return SidecarPlan(sidecar.app_id, SidecarAction.AWAIT, expected, sidecar.before)
    obstacles = {**reload_obstacles(open_points, expected, sidecar.before), **_overtaken(open_points, sidecar)}
    needed = {ref: f"restart needed: {reason}" for ref, reason in obstacles.items()}
    return SidecarPlan(sidecar.app_id, SidecarAction.RELOAD, expected, sidecar.before, kept, needed)


def _overtaken(points: Sequence[Expected], sidecar: ObservedSidecar) -> dict[ResourceRef, str]:
    """What replaces content that was never seen in use: its loading may be counted only now, as if it were the new."""
    found = {}
    for each in points:
        proof = sidecar.proofs.get(each.ref)
        if each.changed and each.old is not None and (proof is None or proof.digest != loaded_digest(each.old)):
            found[each.ref] = "the change before this one was not seen to end"
    return found


def _is_proven(each: Expected, sidecar: ObservedSidecar) -> bool:
    proof = sidecar.proofs.get(each.ref)
    return proof is not None and proof.digest == each.digest and not each.changed
