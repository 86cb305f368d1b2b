"""The plan of a delivery on this machine: files to write and remove, and the action for each sidecar. Pure."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime

import msgspec

from governor.agent.platforms.local.files import RESOURCES, ResourceFile, file_key, is_config, resource_file
from governor.agent.platforms.local.storage import Intent, Journal
from governor.agent.verification.obstacles import reload_obstacles
from governor.agent.verification.resources import loaded_digest
from governor.agent.verification.verdicts import Expected, Proof, Reading
from governor.domain.bundles import Delivery
from governor.domain.dapr.kinds import in_scope, kind_of
from governor.domain.documents import ApplyPolicy, ResourceRef, Strategy, Unproven, resource_ref
from governor.domain.windows import Restraint
from governor.values.trees import Manifest


class ObservedFile(msgspec.Struct, frozen=True):
    """A file in one of the directories, with the resources in it that could be parsed.

    ``stamp`` is another one after each write by any program, also of the same content.
    """

    digest: str
    manifests: tuple[Manifest, ...]
    stamp: str = ""


class ObservedSidecar(msgspec.Struct, frozen=True):
    """One sidecar before the change.

    ``released``: if it is not running, it exited and is being restarted. ``external``: the agent cannot restart it.
    """

    app_id: str
    before: Reading | None = None
    proofs: Mapping[ResourceRef, Proof] = {}
    released: bool = False
    external: bool = False

    @property
    def running(self) -> bool:
        """Whether it has a process."""
        return self.before is not None and self.before.instance is not None

    @property
    def current(self) -> bool:
        """Whether its process started after the last write."""
        return self.before is not None and self.before.started_after_write


class Observed(msgspec.Struct, frozen=True):
    """The observed state that a plan depends on."""

    namespace: str
    files: Mapping[str, ObservedFile]
    journal: Journal
    sidecars: Sequence[ObservedSidecar]


class SidecarAction(enum.StrEnum):
    """What is done with one sidecar for a delivery."""

    KEEP = "keep"
    """Do nothing: everything is proven for its current process."""
    RELOAD = "reload"
    """Let the running process reload the change."""
    AWAIT = "await"
    """Only verify: its process, or the next one if it has none, is newer than the files."""
    START = "start"
    """Start it after the write; stop it before the write if it runs."""
    ROLL = "roll"
    """Restart it after the write, once the change is verified in the sidecars before it."""


class SidecarPlan(msgspec.Struct, frozen=True):
    """The action of one sidecar and what it must prove. ``obstacles``: what this action cannot prove, and why."""

    app_id: str
    action: SidecarAction
    expected: tuple[Expected, ...]
    before: Reading | None = None
    kept: Mapping[ResourceRef, Proof] = {}
    obstacles: Mapping[ResourceRef, str] = {}


class Plan(msgspec.Struct, frozen=True):
    """The steps, in order: write, remove, then the sidecars."""

    writes: tuple[ResourceFile, ...]
    removals: tuple[str, ...]
    intent: Intent
    config: str | None
    sidecars: tuple[SidecarPlan, ...]


class Rejection(msgspec.Struct, frozen=True):
    """Why nothing of a delivery can be applied, by resource."""

    reasons: Mapping[ResourceRef, str]


def plan(delivery: Delivery, observed: Observed) -> Plan | Rejection:
    """Return the steps from the observed state to the delivery, or why it is rejected."""
    observed = _with_returned_files(delivery, observed)
    reasons = dict(_rejections(delivery, observed))
    if reasons:
        return Rejection(reasons)
    files = sorted((resource_file(each, observed.namespace) for each in delivery.resources), key=lambda it: it.rank)
    keys = {each.key for each in files}
    writes = tuple(each for each in files if _digest_of(each.key, observed) != each.digest)
    # The delivery's removals need no extra step: the agent removes every file that it wrote and that is not delivered.
    removals = tuple(sorted(observed.journal.files - keys))
    removed = _removed_digests(delivery, removals, observed)
    intent = Intent(delivery.sequence, tuple(each.key for each in files), removals, delivery.digest, removed)
    config = next(filter(is_config, keys), None)
    refs = (*(each.ref for each in files), *delivery.removals)
    drifted = frozenset(ref for ref in refs if file_key(ref) in observed.journal.drifted)
    sidecars = tuple(
        _sidecar_plan(each, _expected(each.app_id, files, delivery, observed), delivery.apply, drifted)
        for each in observed.sidecars
    )
    return Plan(writes, removals, intent, config, sidecars)


def restrained(planned: Plan, delivery: Delivery, observed: Observed, now: datetime) -> Plan | Restraint:
    """Return the plan as far as it may be carried out now, or what keeps it from being carried out.

    A delivery that is not written yet waits as a whole: what it changes in one sidecar must not be without the rest. A
    write that was interrupted is completed.
    """
    intent = observed.journal.intent
    if intent is not None and intent.digest == delivery.digest:
        return planned
    is_change = bool(planned.writes or planned.removals)
    restraint = delivery.write_restraint(now) if is_change else None
    if restraint is None and _restarts_any(planned, delivery, observed):
        restraint = delivery.restart_restraint(now)
    if restraint is None or is_change:
        return restraint or planned
    policy = msgspec.structs.replace(delivery.apply, strategy=Strategy.RELOAD, unproven=Unproven.REPORT)
    lenient = plan(msgspec.structs.replace(delivery, apply=policy), observed)
    return planned if isinstance(lenient, Rejection) else lenient


def _restarts_any(planned: Plan, delivery: Delivery, observed: Observed) -> bool:
    """Return whether a sidecar is restarted that runs, or that would run with what was written before."""
    running = {each.app_id for each in observed.sidecars if each.running}
    has_other_content = bool(observed.journal.files) and not observed.journal.holds(delivery.digest)
    starting = [each.app_id for each in planned.sidecars if each.action in (SidecarAction.START, SidecarAction.ROLL)]
    return any(has_other_content or app_id in running for app_id in starting)


def affected_sidecars(planned: Plan, journal: Journal) -> list[str]:
    """Return the sidecars that may load something else after the plan's files are written; ``journal`` is as before."""
    return [
        one.app_id
        for one in planned.sidecars
        if any(each.changed or file_key(each.ref) in journal.drifted for each in one.expected)
    ]


def is_returned(key: str, files: Mapping[str, ObservedFile], journal: Journal) -> bool:
    """Return whether a file that the agent removed is back with the same content: then it may be removed again."""
    return key in files and key not in journal.files and files[key].digest == journal.removed_digests.get(key)


def _with_returned_files(delivery: Delivery, observed: Observed) -> Observed:
    """Return the observed state in which files that are back count as the agent's."""
    files, journal = observed.files, observed.journal
    returned = {key for key in map(file_key, delivery.removals) if is_returned(key, files, journal)}
    owned = msgspec.structs.replace(journal, owned=journal.owned | returned)
    return msgspec.structs.replace(observed, journal=owned) if returned else observed


def _removed_digests(delivery: Delivery, removals: Sequence[str], observed: Observed) -> dict[str, str]:
    """Return the last digests of the files that are absent after the plan."""
    known = observed.journal.removed_digests
    now = {key: observed.files[key].digest for key in removals if key in observed.files}
    keys = {*removals, *map(file_key, delivery.removals)}
    return {key: digest for key, digest in sorted({**known, **now}.items()) if key in keys}


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
            yield ref, f"a sidecar loads one Configuration, this delivery has several: {names}; keep one"


def _rejection(ref: ResourceRef, manifest: Manifest, observed: Observed) -> str:
    if kind_of(manifest) is None:
        return f"{ref.kind} ({manifest.get('apiVersion')}) is not a kind that a Dapr sidecar on this machine loads"
    if ref.namespace != observed.namespace:
        return (
            f"the sidecars of this runtime are in namespace {observed.namespace!r}: another namespace is not supported"
        )
    key = file_key(ref)
    if key in observed.files and key not in observed.journal.files:
        return f"the file {key} already exists and was not written by this agent: move it elsewhere"
    foreign = next(foreign_definitions(ref, observed.namespace, observed.files, observed.journal), None)
    if foreign is None:
        return ""
    return f"it is already defined in {foreign}, which this agent did not write: remove it there or from the profile"


def foreign_definitions(
    ref: ResourceRef, namespace: str, files: Mapping[str, ObservedFile], journal: Journal
) -> Iterator[str]:
    """Yield the files in the resources directory that define a resource and that the agent did not write."""
    for key in sorted(files):
        is_foreign = key.startswith(f"{RESOURCES}/") and key not in journal.files
        # Without a namespace a manifest is loaded in every namespace.
        if is_foreign and any(resource_ref(manifest, namespace) == ref for manifest in files[key].manifests):
            yield key


def _digest_of(key: str, observed: Observed) -> str:
    return observed.files[key].digest if key in observed.files else ""


def _expected(
    app_id: str, files: Sequence[ResourceFile], delivery: Delivery, observed: Observed
) -> tuple[Expected, ...]:
    """Return what one sidecar must prove: what is in its scope, and that what left its scope is absent."""
    new = {each.ref: each.manifest for each in files if in_scope(each.manifest, app_id)}
    old = {ref: manifest for ref, manifest in _own_manifests(files, observed) if in_scope(manifest, app_id)}
    removed = {ref for ref in delivery.removals if ref.namespace == observed.namespace}
    refs = sorted({*new, *old, *removed})
    return tuple(Expected(ref, new.get(ref), old.get(ref)) for ref in refs)


def _own_manifests(files: Sequence[ResourceFile], observed: Observed) -> Iterator[tuple[ResourceRef, Manifest]]:
    """Yield the manifests in this agent's files; an unchanged file counts as its source, not as parsed again."""
    unchanged = {each.key: each for each in files if _digest_of(each.key, observed) == each.digest}
    for key in observed.journal.files & observed.files.keys():
        if key in unchanged:
            yield unchanged[key].ref, unchanged[key].manifest
            continue
        for manifest in observed.files[key].manifests:
            yield resource_ref(manifest, observed.namespace), manifest


def _sidecar_plan(
    sidecar: ObservedSidecar, expected: tuple[Expected, ...], policy: ApplyPolicy, drifted: AbstractSet[ResourceRef]
) -> SidecarPlan:
    if sidecar.external:
        return _external_plan(sidecar, expected, drifted)
    kept = {each.ref: sidecar.proofs[each.ref] for each in expected if _is_proven(each, sidecar)}
    unproven = tuple(each for each in expected if each.ref not in kept)
    if not sidecar.running:
        if sidecar.released and not any(each.changed for each in expected):
            return SidecarPlan(sidecar.app_id, SidecarAction.AWAIT, expected, sidecar.before)
        return SidecarPlan(sidecar.app_id, SidecarAction.START, expected, sidecar.before)
    if not unproven:
        return SidecarPlan(sidecar.app_id, SidecarAction.KEEP, expected, sidecar.before, kept)
    if _is_fresh(sidecar, expected, drifted):
        return SidecarPlan(sidecar.app_id, SidecarAction.AWAIT, expected, sidecar.before)
    if policy.strategy is Strategy.ROLLING:
        return SidecarPlan(sidecar.app_id, SidecarAction.ROLL, expected, sidecar.before)
    obstacles = _obstacles(unproven, expected, sidecar, drifted)
    if obstacles and policy.unproven is Unproven.RESTART:
        return SidecarPlan(sidecar.app_id, SidecarAction.START, expected, sidecar.before)
    return SidecarPlan(sidecar.app_id, SidecarAction.RELOAD, expected, sidecar.before, kept, obstacles)


def _external_plan(
    sidecar: ObservedSidecar, expected: tuple[Expected, ...], drifted: AbstractSet[ResourceRef]
) -> SidecarPlan:
    """Plan an external sidecar: verify what a running process can prove; the rest needs a restart by its owner."""
    kept = {each.ref: sidecar.proofs[each.ref] for each in expected if _is_proven(each, sidecar)}
    unproven = tuple(each for each in expected if each.ref not in kept)
    if not unproven:
        return SidecarPlan(sidecar.app_id, SidecarAction.KEEP, expected, sidecar.before, kept)
    if not sidecar.running or _is_fresh(sidecar, expected, drifted):
        return SidecarPlan(sidecar.app_id, SidecarAction.AWAIT, expected, sidecar.before)
    obstacles = _obstacles(unproven, expected, sidecar, drifted)
    needed = {ref: f"restart needed: {reason}" for ref, reason in obstacles.items()}
    return SidecarPlan(sidecar.app_id, SidecarAction.RELOAD, expected, sidecar.before, kept, needed)


def _is_fresh(sidecar: ObservedSidecar, expected: Sequence[Expected], drifted: AbstractSet[ResourceRef]) -> bool:
    """Return whether a process has loaded what it must prove, if anything: it started after the last write."""
    # A process that started after the agent's last write may have loaded what another program wrote later.
    return sidecar.current and not any(each.changed or each.ref in drifted for each in expected)


def _obstacles(
    unproven: Sequence[Expected],
    expected: Sequence[Expected],
    sidecar: ObservedSidecar,
    drifted: AbstractSet[ResourceRef],
) -> dict[ResourceRef, str]:
    """Return, by resource, why a reload would not prove it."""
    reason = "its file was changed by another program, so what the running process has loaded is unknown"
    return {
        **reload_obstacles(unproven, expected, sidecar.before),
        **_previous_unproven(unproven, sidecar),
        **{each.ref: reason for each in unproven if each.ref in drifted},
    }


def _previous_unproven(changes: Sequence[Expected], sidecar: ObservedSidecar) -> dict[ResourceRef, str]:
    """Return changes of content that was never proven: a late load of it would be counted as one of the new content."""
    found = {}
    for each in changes:
        proof = sidecar.proofs.get(each.ref)
        if each.changed and each.old is not None and (proof is None or proof.digest != loaded_digest(each.old)):
            found[each.ref] = "the previous change was not verified"
    return found


def _is_proven(each: Expected, sidecar: ObservedSidecar) -> bool:
    proof = sidecar.proofs.get(each.ref)
    return proof is not None and proof.digest == each.digest and not each.changed
