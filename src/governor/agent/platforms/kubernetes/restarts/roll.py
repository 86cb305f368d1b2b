"""Judging a restart: from observations of the workload to done or failed. No I/O.

A restart fails at its first bad pod, so that the rest of the workload keeps running as it did. The window is measured
by the agent's monotonic clock and begins again with each pod that appears or becomes healthy.
"""

import enum
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.plans.affected import live_pods
from governor.agent.platforms.kubernetes.restarts.decision import restart_hindrance
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Update, Workload
from governor.domain.reports import Cause

WINDOW_S: Final = 300.0
_SELF_HEALING: Final = frozenset({"Deployment", "DaemonSet"})
_CRASH_LOOP: Final = "CrashLoopBackOff"


class RollState(enum.StrEnum):
    """The progress of a restart."""

    STARTED = "started"
    ROLLING = "rolling"
    REVERTED = "reverted"
    """The template does not have the annotation: it was reverted, or the observation is older than the write."""
    DONE = "done"
    FAILED = "failed"
    """The annotation is to be reset."""
    HELD = "held"
    """The controller has finished, but some pods keep their old template, as with the partition of a StatefulSet."""


FINAL: Final = frozenset({RollState.DONE, RollState.FAILED, RollState.HELD})


class Roll(msgspec.Struct, frozen=True):
    """The state of one restart: ``healthy`` of ``total`` pods are new with a healthy sidecar.

    ``progressed_s`` is when ``reached``, the most new and healthy pods seen so far, last rose. ``violated_s`` is since
    when a disruption budget is violated.
    """

    digest: str
    progressed_s: float
    state: RollState = RollState.STARTED
    healthy: int = 0
    total: int = 0
    reached: int = 0
    violated_s: float | None = None
    reason: str = ""
    cause: Cause | None = None


def observe(
    roll: Roll,
    workload: Workload,
    now_s: float,
    *,
    window_s: float = WINDOW_S,
    waiting: str = "",
    violation: str = "",
) -> Roll:
    """Return the restart's next state.

    ``waiting`` is why the agent does not evict the next pod yet, such as a disruption budget; the window does not run
    meanwhile. ``violation`` says which budget is violated while a controller, which respects none, replaces the pods.
    """
    if roll.state in FINAL:
        return roll
    new = _new_pods(workload, roll.digest)
    roll = _violated(_counted(roll, workload, new, now_s, waiting), now_s, violation)
    for pod in new:
        if failure := _failure(pod, workload):
            return _failed(roll, *failure)
    is_overdue = now_s - roll.progressed_s > window_s
    if workload.restart_digest != roll.digest:
        return _reverted(roll, is_overdue=is_overdue)
    if _is_complete(roll, workload):
        return msgspec.structs.replace(roll, state=RollState.DONE, reason="")
    if roll.violated_s is not None and now_s - roll.violated_s > window_s:
        advice = "let its update strategy replace fewer pods at a time than the budget allows"
        return _failed(roll, Cause.RUNTIME, f"{violation} for more than {window_s:g} s: {advice}")
    return _overdue(roll, workload, new) if is_overdue else roll


def next_eviction(workload: Workload, digest: str) -> Pod | None:
    """Return the pod to evict next, or None while another one is replaced, or if all are new.

    Pods that are not ready come first: their eviction interrupts least.
    """
    live = live_pods(workload)
    settled = [pod for pod in live if pod.restart_digest != digest or _is_healthy(pod, workload)]
    if any(pod.deleting for pod in workload.pods) or len(settled) < max(len(live), workload.desired or 0):
        return None
    old = [pod for pod in live if pod.restart_digest != digest]
    return min(old, key=lambda pod: (pod.ready, pod.name), default=None)


def left_behind(workload: Workload, digest: str) -> Pod | None:
    """Return a pod of a restart that was undone and that only an eviction replaces, or None.

    A StatefulSet never replaces a pod that is not ready; without rolling updates no pod is replaced.
    """
    heals_itself = workload.ref.kind in _SELF_HEALING and workload.update is not Update.ON_DELETE
    if heals_itself or any(pod.deleting for pod in workload.pods):
        return None
    new = sorted(_new_pods(workload, digest), key=lambda pod: _is_healthy(pod, workload))
    by_eviction = workload.update is not Update.ROLLING and all(
        _is_healthy(pod, workload) for pod in live_pods(workload)
    )
    return next((pod for pod in new if by_eviction or not _is_healthy(pod, workload)), None)


def stranded(workload: Workload) -> Pod | None:
    """Return an unhealthy pod of a restart that the template no longer has and that only an eviction replaces, or None.

    Such a pod outlives the process that took its restart back, and keeps every later one from beginning.
    """
    others = {pod.restart_digest for pod in live_pods(workload)} - {"", workload.restart_digest}
    if restart_hindrance(workload):
        return None
    found = (left_behind(workload, digest) for digest in sorted(others))
    return next((pod for pod in found if pod is not None and not _is_healthy(pod, workload)), None)


def earlier_try(workload: Workload, digest: str) -> str:
    """Return which pod of a restart that was undone is not gone yet, or ``""``: it must not fail the next try."""
    if workload.restart_digest == digest:
        return ""
    return next((f"pod {pod.name} of an earlier try is not gone yet" for pod in _new_pods(workload, digest)), "")


def _new_pods(workload: Workload, digest: str) -> list[Pod]:
    return sorted((pod for pod in live_pods(workload) if pod.restart_digest == digest), key=lambda pod: pod.name)


def _is_healthy(pod: Pod, workload: Workload) -> bool:
    return pod.ready and (pod.sidecar.ready if pod.sidecar else not workload.enabled)


def _counted(roll: Roll, workload: Workload, new: list[Pod], now_s: float, waiting: str) -> Roll:
    healthy = sum(_is_healthy(pod, workload) for pod in new)
    reached = healthy + len(new)
    return msgspec.structs.replace(
        roll,
        state=RollState.ROLLING if new else RollState.STARTED,
        healthy=healthy,
        total=len(live_pods(workload)) if workload.desired is None else workload.desired,
        reached=max(reached, roll.reached),
        progressed_s=now_s if waiting or reached > roll.reached else roll.progressed_s,
        reason=waiting or workload.message,
    )


def _violated(roll: Roll, now_s: float, violation: str) -> Roll:
    """Return a restart with since when it violates a budget; it goes on, because the next pod may end the violation."""
    if not violation:
        return msgspec.structs.replace(roll, violated_s=None)
    since_s = now_s if roll.violated_s is None else roll.violated_s
    return msgspec.structs.replace(roll, violated_s=since_s, reason=violation)


def _failure(pod: Pod, workload: Workload) -> tuple[Cause, str] | None:
    """Return why a new pod ends the restart at once, or None."""
    sidecar = pod.sidecar
    if sidecar is None:
        no_sidecar = f"pod {pod.name} has no sidecar: Dapr's injector did not add it; check dapr-sidecar-injector"
        return (Cause.RUNTIME, no_sidecar) if workload.enabled else None
    has_exited = sidecar.last_exit or sidecar.waiting == _CRASH_LOOP
    if sidecar.ready or sidecar.is_excused or not has_exited:
        return None
    return Cause.CHANGE, f"the sidecar of pod {pod.name} exited: {sidecar.last_exit or sidecar.waiting}"


def _is_complete(roll: Roll, workload: Workload) -> bool:
    has_old = any(pod.restart_digest != roll.digest for pod in live_pods(workload))
    return workload.rolled_out and not has_old and roll.healthy >= roll.total


def _reverted(roll: Roll, *, is_overdue: bool) -> Roll:
    reason = "the annotation is not in the template"
    if is_overdue:
        return _failed(roll, Cause.RUNTIME, f"{reason}: another manager removes it or has replaced it")
    return msgspec.structs.replace(roll, state=RollState.REVERTED, reason=reason)


def _overdue(roll: Roll, workload: Workload, new: list[Pod]) -> Roll:
    """Return how a restart ends that no longer progresses."""
    unhealthy = next((pod for pod in new if not _is_healthy(pod, workload)), None)
    if unhealthy is not None:
        return _failed(roll, *_why_unhealthy(unhealthy))
    if workload.rolled_out:
        reason = f"restart needed: {roll.total - roll.healthy} of {roll.total} pods keep their old template"
        return msgspec.structs.replace(roll, state=RollState.HELD, reason=reason)
    return _failed(
        roll, Cause.RUNTIME, f"no further pod was replaced: {workload.message or 'its controller is silent'}"
    )


def _why_unhealthy(pod: Pod) -> tuple[Cause, str]:
    late = f"pod {pod.name} did not become ready in time"
    if pod.sidecar is not None and pod.sidecar.is_excused:
        return Cause.RUNTIME, f"{late}: its sidecar was killed: {pod.sidecar.last_exit}"
    if pod.sidecar is None or not pod.sidecar.started:
        waiting = (pod.sidecar.waiting if pod.sidecar else "") or pod.phase or "it has not started"
        return Cause.RUNTIME, f"{late}: {waiting}"
    who = "the application is not ready" if pod.sidecar.ready else "its sidecar is not ready"
    return Cause.CHANGE, f"{late}: {who}"


def _failed(roll: Roll, cause: Cause, reason: str) -> Roll:
    return msgspec.structs.replace(roll, state=RollState.FAILED, cause=cause, reason=reason)
