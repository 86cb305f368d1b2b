"""Readiness of Pods; for a pod that is not ready, which containers wait and why."""

from collections.abc import Iterator
from typing import Final

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import reason_and_message
from governor.kube.readiness.fields import Status, convert
from governor.kube.readiness.state import Readiness, failed, progressing, ready, unknown

_FAILURES: Final = frozenset({"CrashLoopBackOff", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
"""Waiting reasons after repeated failures, or where a retry cannot help."""
_NORMAL: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Waiting reasons of a normal start."""


class _Waiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Terminated(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    exit_code: int = 0


class _ContainerState(msgspec.Struct, frozen=True):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: _ContainerState = _ContainerState()
    last_state: _ContainerState = _ContainerState()


class _PodStatus(Status, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    init_container_statuses: tuple[_Container, ...] = ()
    container_statuses: tuple[_Container, ...] = ()

    @property
    def containers(self) -> tuple[_Container, ...]:
        return (*self.init_container_statuses, *self.container_statuses)


class _Pod(msgspec.Struct, frozen=True):
    status: _PodStatus = _PodStatus()


def pod(manifest: Object) -> Readiness:
    """Return the readiness by phase, then by waiting containers, then by conditions."""
    status = convert(manifest, _Pod).status
    match status.phase:
        case "Succeeded":
            return ready("Completed", "all containers have succeeded")
        case "Failed":
            message = status.message or "; ".join(_failed_containers(status)) or "it has failed"
            return failed(status.reason or "Failed", message)
        case "Unknown":
            return unknown(status.reason or "NodeLost", status.message or "its node does not report its state")
    return _by_waiting_containers(status) or _by_conditions(status)


def _by_waiting_containers(status: _PodStatus) -> Readiness | None:
    """Return the readiness if containers wait for something unusual; the worst one gives the reason."""
    waiting = [(each, each.state.waiting) for each in status.containers if each.state.waiting]
    unusual = [(each, state) for each, state in waiting if state.reason not in _NORMAL]
    if not unusual:
        return None
    unusual.sort(key=lambda pair: pair[1].reason not in _FAILURES)
    worst = unusual[0][1].reason
    message = "; ".join(_describe_waiting(each, state) for each, state in unusual)
    return failed(worst, message) if worst in _FAILURES else progressing(worst, message)


def _describe_waiting(container: _Container, waiting: _Waiting) -> str:
    text = f"container {container.name}: {waiting.reason}"
    if waiting.message:
        text += f": {waiting.message}"
    if container.restart_count:
        text += f" ({container.restart_count} restarts{_last_termination(container)})"
    return text


def _last_termination(container: _Container) -> str:
    terminated = container.last_state.terminated
    return f", last {_describe_termination(terminated)}" if terminated else ""


def _failed_containers(status: _PodStatus) -> Iterator[str]:
    for each in status.containers:
        terminated = each.state.terminated
        if terminated and terminated.exit_code:
            yield f"container {each.name}: {_describe_termination(terminated)}"


def _describe_termination(terminated: _Terminated) -> str:
    return f"{terminated.reason or 'ended'} with exit code {terminated.exit_code}"


def _by_conditions(status: _PodStatus) -> Readiness:
    readiness = status.condition("Ready")
    if readiness and readiness.is_true:
        return ready("Ready", "")
    scheduled = status.condition("PodScheduled")
    if scheduled is None:
        return progressing("NotScheduled", "it is not scheduled to a node yet")
    if not scheduled.is_true:
        return progressing(*reason_and_message(scheduled))
    if readiness and readiness.is_false and (readiness.reason or readiness.message):
        return progressing(*reason_and_message(readiness))
    return progressing("Starting", "its node has not started it yet")
