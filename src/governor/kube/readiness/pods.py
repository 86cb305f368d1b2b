"""Pods: ready or run to their end; otherwise which container holds them up, and why."""

from collections.abc import Iterator
from typing import Final

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.conditions import words
from governor.kube.readiness.fields import Status, read
from governor.kube.readiness.verdict import Readiness, failed, progressing, ready, unknown

_HOPELESS: Final = frozenset({"CrashLoopBackOff", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
"""Why a container waits when it has failed more than once, or when trying again cannot help."""
_USUAL: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Why a container waits when all goes well."""


class _Waiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Ended(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    exit_code: int = 0


class _ContainerState(msgspec.Struct, frozen=True):
    waiting: _Waiting | None = None
    terminated: _Ended | None = None


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
    """By its phase first, then by its containers, then by its conditions."""
    status = read(manifest, _Pod).status
    match status.phase:
        case "Succeeded":
            return ready("Completed", "all containers have ended well")
        case "Failed":
            return failed(status.reason or "Failed", status.message or "; ".join(_ends(status)) or "it has failed")
        case "Unknown":
            return unknown(status.reason or "NodeLost", status.message or "its node does not say how it is")
    return _held_up(status) or _by_conditions(status)


def _held_up(status: _PodStatus) -> Readiness | None:
    """A verdict if containers wait for something unusual; the worst one gives the reason."""
    waiting = [(each, each.state.waiting) for each in status.containers if each.state.waiting]
    unusual = [(each, why) for each, why in waiting if why.reason not in _USUAL]
    if not unusual:
        return None
    unusual.sort(key=lambda pair: pair[1].reason not in _HOPELESS)
    worst = unusual[0][1].reason
    message = "; ".join(_hold(each, why) for each, why in unusual)
    return failed(worst, message) if worst in _HOPELESS else progressing(worst, message)


def _hold(container: _Container, why: _Waiting) -> str:
    text = f"container {container.name}: {why.reason}"
    if why.message:
        text += f": {why.message}"
    if container.restart_count:
        text += f" ({container.restart_count} restarts{_last_end(container)})"
    return text


def _last_end(container: _Container) -> str:
    ended = container.last_state.terminated
    return f", last {_how(ended)}" if ended else ""


def _ends(status: _PodStatus) -> Iterator[str]:
    for each in status.containers:
        ended = each.state.terminated
        if ended and ended.exit_code:
            yield f"container {each.name}: {_how(ended)}"


def _how(ended: _Ended) -> str:
    return f"{ended.reason or 'ended'} with exit code {ended.exit_code}"


def _by_conditions(status: _PodStatus) -> Readiness:
    being_ready = status.condition("Ready")
    if being_ready and being_ready.true:
        return ready("Ready", "")
    scheduled = status.condition("PodScheduled")
    if scheduled is None:
        return progressing("NotScheduled", "no node has been chosen yet")
    if not scheduled.true:
        return progressing(*words(scheduled))
    if being_ready and being_ready.false and (being_ready.reason or being_ready.message):
        return progressing(*words(being_ready))
    return progressing("Starting", "its node has not started it yet")
