"""The plan of a delivery in a cluster: the action for each workload, and the order of restarts. Pure.

The same changes are planned before the write, for a preview too, and again after each step until all is verified.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.plans.affected import Change, Changes, Scope, live_pods, scope_of
from governor.agent.platforms.kubernetes.plans.hot_reload import SidecarFacts, obstacle, rolling_rejections
from governor.agent.platforms.kubernetes.restarts.control_plane import ControlPlane
from governor.agent.platforms.kubernetes.restarts.decision import restart_hindrance
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Update, Workload
from governor.agent.verification.verdicts import Expected, Proof
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef, Strategy, Unproven
from governor.domain.reports import WorkloadRef
from governor.domain.windows import Restraint
from governor.values.digest import digest

ADOPTED: Final = "adopted as it is, so nothing was restarted to prove it"
_RESTARTED: Final = "it has been restarted for this content and write"


class Observed(msgspec.Struct, frozen=True):
    """The observed state that a plan depends on.

    ``sidecars``: the facts from before the write, by pod uid; a sidecar that is absent could not be probed.
    ``proofs``: by ``Pod.instance``, without those of resources that were written, or drifted, since.
    ``obstacles``: by pod uid, further reasons why a running sidecar does not prove a resource.
    ``applied``: whether the changes are written. ``written``: the time of the last write, by the API server's clock.
    ``adopted``: resources that were taken over as they are, for which alone nothing is restarted.
    ``versions``: what identifies the agent's last write of each resource. ``attempt``: that of the delivery.
    ``control_plane``: Dapr's, as far as it is known: what new pods get, and whether its watchdog runs.
    """

    workloads: Sequence[Workload]
    sidecars: Mapping[str, SidecarFacts] = {}
    proofs: Mapping[str, Mapping[ResourceRef, Proof]] = {}
    obstacles: Mapping[str, Mapping[ResourceRef, str]] = {}
    applied: bool = False
    written: datetime | None = None
    versions: Mapping[ResourceRef, str] = {}
    attempt: int = 1
    adopted: frozenset[ResourceRef] = frozenset()
    control_plane: ControlPlane = ControlPlane()


class Action(enum.StrEnum):
    """What is done with one workload for a delivery."""

    KEEP = "keep"
    """Do nothing: it is not affected, has no pods, or everything is proven."""
    RELOAD = "reload"
    """Let the running sidecars load the change, and verify."""
    AWAIT = "await"
    """Only verify: its pods are newer than the write, or are being replaced by a restart for this content."""
    WATCHDOG = "watchdog"
    """Only verify: Dapr's watchdog replaces its pods without a sidecar."""
    RESTART = "restart"
    """Restart it by its template."""
    EVICT = "evict"
    """Restart it by evicting its pods, because its template does not roll: a bare ReplicaSet."""
    RESTART_NEEDED = "restart-needed"
    """It must be restarted, but not by the agent."""
    NEXT_RUN = "next-run"
    """Its next run loads the change: a CronJob."""


_RESTARTS: Final = frozenset({Action.RESTART, Action.EVICT, Action.RESTART_NEEDED})
_IN_WAVES: Final = frozenset({Action.AWAIT, Action.RESTART, Action.EVICT})


class WorkloadPlan(msgspec.Struct, frozen=True):
    """The action of one workload, and why.

    ``expected``: what its sidecars must prove. ``pods``: uids of those that do not prove all of it yet.
    ``obstacles``: resources that running sidecars cannot load or prove, so that a restart is needed, and why.
    ``digest``: what a restart would be for. ``image_change``: how it would change the version of daprd, or empty.
    ``hosts_actors``: None if a sidecar did not say.
    """

    workload: WorkloadRef
    action: Action
    reason: str
    expected: tuple[Expected, ...] = ()
    pods: tuple[str, ...] = ()
    obstacles: Mapping[ResourceRef, str] = {}
    digest: str = ""
    image_change: str = ""
    hosts_actors: bool | None = False

    @property
    def may_host_actors(self) -> bool:
        """Whether it hosts actors as far as is known."""
        return self.hosts_actors is not False

    @property
    def text(self) -> str:
        """The reason, with the change of daprd's version that a restart would bring."""
        return f"{self.reason}; {self.image_change}" if self.image_change else self.reason


class Plan(msgspec.Struct, frozen=True):
    """The action of each workload. ``waves``: those that restart, each wave after the one before it is verified."""

    workloads: tuple[WorkloadPlan, ...]
    waves: tuple[tuple[WorkloadRef, ...], ...] = ()


class Rejection(msgspec.Struct, frozen=True):
    """Why nothing of a delivery can be applied, by resource."""

    reasons: Mapping[ResourceRef, str]


class _Stale(msgspec.Struct, frozen=True):
    """A pod that does not prove everything in its scope, and why it cannot; ``waits`` if it only needs time.

    ``adopted`` if it only does not prove what was adopted as it is.
    """

    pod: Pod
    waits: bool = False
    adopted: bool = False
    obstacles: Mapping[ResourceRef, str] = {}


def plan(changes: Changes, observed: Observed, policy: ApplyPolicy) -> Plan | Rejection:
    """Return the action of each workload, or why the delivery is rejected.

    ``changes`` are all resources of the delivery and all that it removes, the same ones before and after the write:
    ``old`` is what the sidecars may have loaded before it.
    """
    rolling = policy.strategy is Strategy.ROLLING
    workloads = sorted(observed.workloads, key=lambda each: each.ref)
    if rolling and not observed.applied and (reasons := rolling_rejections(changes, workloads, observed.sidecars)):
        return Rejection(reasons)
    plans = tuple(_workload_plan(each, changes, observed, policy) for each in workloads)
    return Plan(plans, _waves(plans, rolling=rolling))


def depends_on_control_plane(planned: Plan, workloads: Iterable[Workload]) -> bool:
    """Return whether a plan that was made without knowing Dapr's control plane may be another one with it."""
    stale = {uid for each in planned.workloads for uid in each.pods}
    is_missing = any(pod.sidecar is None and pod.uid in stale for each in workloads for pod in live_pods(each))
    return is_missing or any(each.action in _RESTARTS for each in planned.workloads)


def restart_digest(changes: Iterable[Change], observed: Observed) -> str:
    """Return the digest of what a restart is for: the writes of everything that a workload's new sidecars load, or must
    not load any more, and the attempt of the delivery.

    It depends neither on the present pods nor on what their sidecars report, so it is the same while pods are replaced.
    It covers writes and not contents: content that returns is another restart, and a secret cannot be guessed by it.
    A removal is another restart than the write before it, whose version is the last one that is known.
    """
    return digest([observed.attempt, {str(each.ref): _write_of(each, observed) for each in changes}])


def _write_of(change: Change, observed: Observed) -> str:
    """Return what identifies the write that a new sidecar loads, or must not load any more."""
    version = observed.versions.get(change.ref, "")
    return version if change.digest else f"{version} unloaded"


def _workload_plan(workload: Workload, changes: Changes, observed: Observed, policy: ApplyPolicy) -> WorkloadPlan:
    pods, template = live_pods(workload), _template_scopes(workload)
    seen = changes.seen_by(template.union(map(scope_of, pods)))
    stale = [found for pod in pods if (found := _stale(pod, changes, observed))]
    draft = WorkloadPlan(
        workload.ref,
        Action.KEEP,
        "everything that it loads is proven" if seen else "it loads nothing of the delivery",
        tuple(each.expected for each in seen),
        tuple(each.pod.uid for each in stale),
        digest=restart_digest(changes.seen_by(template) if template else seen, observed),
        hosts_actors=_hosts_actors(pods, observed),
    )
    if not pods and seen:
        return _without_pods(draft, workload, seen)
    if not stale:
        return draft
    stale = [each for each in stale if not each.adopted]
    if not stale:
        return _decided(draft, Action.KEEP, ADOPTED)
    if all(each.waits for each in stale):
        return _awaiting(draft, stale, observed)
    return _with_stale_pods(draft, workload, [each for each in stale if not each.waits], observed, policy)


def _awaiting(draft: WorkloadPlan, stale: Sequence[_Stale], observed: Observed) -> WorkloadPlan:
    interval = observed.control_plane.watch_interval(draft.workload.namespace)
    if interval and any(each.pod.sidecar is None for each in stale):
        reason = f"its pods without a sidecar are left to Dapr's watchdog, which replaces them every {interval}"
        return _decided(draft, Action.WATCHDOG, reason)
    return _decided(draft, Action.AWAIT, "its unverified pods are newer than the write, or about to start")


def _template_scopes(workload: Workload) -> frozenset[Scope]:
    """Return the scope of the workload's new pods; none if its template is unknown."""
    scope = Scope(workload.ref.namespace, workload.app_id, workload.configuration)
    return frozenset({scope} if workload.app_id else ())


def _decided(draft: WorkloadPlan, action: Action, reason: str) -> WorkloadPlan:
    return msgspec.structs.replace(draft, action=action, reason=reason)


def _restart_needed(draft: WorkloadPlan, reason: str) -> WorkloadPlan:
    return _decided(draft, Action.RESTART_NEEDED, f"restart needed: {reason}")


def _hosts_actors(pods: Iterable[Pod], observed: Observed) -> bool | None:
    known = [observed.sidecars.get(pod.uid) for pod in pods]
    if any(facts is not None and facts.hosts_actors for facts in known):
        return True
    return None if None in known else False


def _without_pods(draft: WorkloadPlan, workload: Workload, seen: Sequence[Change]) -> WorkloadPlan:
    if workload.update is Update.NEXT_RUN and any(each.changed for each in seen):
        return _decided(draft, Action.NEXT_RUN, "its next run loads the change")
    if workload.desired:
        return _decided(draft, Action.AWAIT, "its pods have not been created yet")
    return _decided(draft, Action.KEEP, "it has no pods: the next one loads the change when it starts")


def _stale(pod: Pod, changes: Changes, observed: Observed) -> _Stale | None:
    """Return what a pod does not prove, or None if it proves everything in its scope."""
    seen = changes.seen_by(frozenset({scope_of(pod)}))
    is_new = _is_newer_than_write(pod, seen, observed)
    proofs = observed.proofs.get(pod.instance, {})
    unproven = [each for each in seen if not _is_proven(each, proofs, observed, is_new=is_new)]
    if not unproven:
        return None
    if observed.adopted.issuperset(each.ref for each in unproven):
        return _Stale(pod, adopted=True)
    if pod.sidecar is None:
        reason = f"pod {pod.name} has no sidecar"
        has_watchdog = bool(observed.control_plane.watch_interval(pod.namespace))
        return _Stale(pod, has_watchdog, obstacles={each.ref: reason for each in unproven})
    found = {each.ref: observed.obstacles.get(pod.uid, {}).get(each.ref, "") for each in unproven}
    # A restart would only replace a pod that was created after the write by another one.
    if is_new and _is_created_after(pod, observed.written):
        return _Stale(pod, waits=True)
    if (is_new or _will_start(pod)) and not any(found.values()):
        return _Stale(pod, waits=True)
    facts = observed.sidecars.get(pod.uid)
    found = {each.ref: found[each.ref] or obstacle(each, seen, facts) for each in unproven}
    return _Stale(pod, obstacles={ref: f"pod {pod.name}: {text}" for ref, text in found.items() if text})


def _is_newer_than_write(pod: Pod, seen: Sequence[Change], observed: Observed) -> bool:
    """Return whether a pod is newer than all that it sees; the time of a removal is not known."""
    changed = [each for each in seen if each.changed]
    if not _started_after(pod, observed.written) or any(not each.digest for each in changed):
        return False
    return observed.applied or not changed


def _started_after(pod: Pod, written: datetime | None) -> bool:
    started = pod.sidecar.started if pod.sidecar and pod.sidecar.started else pod.created
    return written is not None and max(started, pod.created) > written


def _is_created_after(pod: Pod, written: datetime | None) -> bool:
    return written is not None and pod.created > written


def _will_start(pod: Pod) -> bool:
    """Return whether its sidecar is not running, so that it loads the change when it starts."""
    return not pod.instance or (pod.sidecar is not None and bool(pod.sidecar.waiting))


def _is_proven(each: Change, proofs: Mapping[ResourceRef, Proof], observed: Observed, *, is_new: bool) -> bool:
    proof = proofs.get(each.ref)
    if proof is None or proof.digest != each.digest or (each.changed and not observed.applied):
        return False
    return is_new or not each.stale_secrets


def _with_stale_pods(
    draft: WorkloadPlan,
    workload: Workload,
    stale: Sequence[_Stale],
    observed: Observed,
    policy: ApplyPolicy,
) -> WorkloadPlan:
    obstacles = {ref: text for each in reversed(stale) for ref, text in each.obstacles.items()}
    draft = msgspec.structs.replace(draft, obstacles=obstacles)
    if policy.strategy is Strategy.RELOAD and not obstacles:
        return _decided(draft, Action.RELOAD, "the running sidecars load the change")
    if policy.strategy is Strategy.RELOAD and policy.unproven is Unproven.REPORT:
        return _decided(draft, Action.RELOAD, "only a restart proves all of it, which apply.unproven does not allow")
    images = _image_change(live_pods(workload), workload.sidecar_image or observed.control_plane.sidecar_image)
    return _restarting(msgspec.structs.replace(draft, image_change=images), workload, stale, observed)


def _restarting(draft: WorkloadPlan, workload: Workload, stale: Sequence[_Stale], observed: Observed) -> WorkloadPlan:
    """Decide how a workload restarts that must."""
    if workload.update is Update.NEXT_RUN:
        return _decided(draft, Action.NEXT_RUN, "its next run loads the change")
    if reason := restart_hindrance(workload):
        return _restart_needed(draft, reason)
    if workload.update is Update.NONE:
        return _evicting(draft, [each.pod for each in stale], observed)
    carried = {pod.restart_digest for pod in live_pods(workload)}
    if workload.restart_digest == draft.digest or carried == {draft.digest}:
        return _decided(draft, Action.AWAIT, _RESTARTED)
    return _decided(draft, Action.RESTART, "the running sidecars cannot load and prove all of it")


def _evicting(draft: WorkloadPlan, stale: Sequence[Pod], observed: Observed) -> WorkloadPlan:
    """Evict pods that no eviction for this content has created; a new one without a sidecar would get no better."""
    carrying = [pod for pod in stale if pod.restart_digest == draft.digest]
    rest = [pod for pod in stale if pod not in carrying]
    old = tuple(pod.uid for pod in rest if pod.sidecar or not _is_created_after(pod, observed.written))
    if not old and any(pod.sidecar for pod in carrying):
        return _decided(draft, Action.AWAIT, _RESTARTED)
    if not old:
        reason = "its pods have started without a sidecar since the write: check Dapr's injector, then delete them"
        return _restart_needed(draft, reason)
    evicted = msgspec.structs.replace(draft, pods=old)
    return _decided(evicted, Action.EVICT, "the running sidecars cannot load and prove all of it")


def _image_change(pods: Sequence[Pod], new: str) -> str:
    """Return how a restart would change the version of the sidecars, or ``""``; ``new`` is the image of new pods."""
    images = sorted({pod.sidecar.image for pod in pods if pod.sidecar})
    if not new:
        return f"its pods have different sidecars, new pods get the same: {', '.join(images)}" if images[1:] else ""
    # A registry that mirrors the image changes its name, not its version.
    others = [image for image in images if _version_of(image) != _version_of(new)]
    return f"daprd changes from {', '.join(others)} to {new}" if others else ""


def _version_of(image: str) -> str:
    """Return the tag or digest of an image; without either, its name."""
    name, _, tag = image.rpartition(":")
    return image if not name or "/" in tag else tag


def _waves(plans: Iterable[WorkloadPlan], *, rolling: bool) -> tuple[tuple[WorkloadRef, ...], ...]:
    """Order restarts: rolling one by one; otherwise at once, but one workload with actors per namespace and wave.

    Those already restarted come first, so that a plan made in between does not begin the next one too early.
    """
    queue = sorted(
        (each for each in plans if each.action in _IN_WAVES and each.pods),
        key=lambda each: (each.action is not Action.AWAIT, each.workload),
    )
    if rolling:
        return tuple((each.workload,) for each in queue)
    waves: list[list[WorkloadRef]] = []
    with_actors: dict[str, int] = {}
    for each in queue:
        position = with_actors.get(each.workload.namespace, 0) if each.may_host_actors else 0
        if each.may_host_actors:
            with_actors[each.workload.namespace] = position + 1
        if position == len(waves):
            waves.append([])
        waves[position].append(each.workload)
    return tuple(map(tuple, waves))


def restraint(planned: Plan, delivery: Delivery, now: datetime, *, is_new: bool) -> Restraint | None:
    """Return what keeps a plan from being carried out now, or None; ``is_new`` if it changes a resource.

    New content waits as a whole if it restarts anything: a pod that starts meanwhile must not load it.
    """
    found = delivery.write_restraint(now) if is_new else None
    is_restarting = any(each.action in (Action.RESTART, Action.EVICT) for each in planned.workloads)
    return found or (delivery.restart_restraint(now) if is_restarting else None)
