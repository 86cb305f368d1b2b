"""Facts about a pod and its sidecar, from its view."""

from collections.abc import Mapping, Sequence
from typing import Final

from governor.agent.platforms.kubernetes.workloads.views import (
    Annotations,
    ContainerSpec,
    ContainerStatus,
    PodView,
    Terminated,
)
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod
from governor.domain.reports import WorkloadRef

_METRICS_PORT: Final = "9090"
_MAX_PORT: Final = 65535
_MAX_SIGNAL: Final = 64
_OUT_OF_MEMORY: Final = "OOMKilled"
_FALSE: Final = frozenset({"0", "f", "false"})


def pod_of(view: PodView, owner: WorkloadRef) -> Pod:
    """Return the facts about a pod."""
    metadata, status = view.metadata, view.status
    found = _find_daprd(view)
    flags = flags_of(found[0].args) if found else {}
    return Pod(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        created=metadata.creation_timestamp,
        app_id=flags.get("app-id") or metadata.labels.app_id or metadata.annotations.app_id or metadata.name,
        owner=owner,
        configuration=first_configuration(flags.get("config", "") if found else metadata.annotations.config),
        ip=status.pod_ip,
        phase=status.phase,
        ready=any(each.type == "Ready" and each.status == "True" for each in status.conditions),
        deleting=bool(metadata.deletion_timestamp),
        restart_digest=metadata.annotations.restart,
        sidecar=_container(*found, flags) if found else None,
        service_account=view.spec.service_account_name,
        environment=_environment(metadata.annotations),
        unscheduled=next((each.message for each in status.conditions if each.is_unscheduled), ""),
    )


def _environment(annotations: Annotations) -> tuple[str, ...]:
    found = (
        annotations.env,
        annotations.env_from_secret,
        annotations.volume_mounts,
        annotations.volume_mounts_rw,
    )
    return found if any(found) else ()


def first_configuration(names: str) -> str:
    """Return the Configuration that daprd loads: in a cluster only the first of a list."""
    return names.split(",", 1)[0].strip()


def flags_of(args: Sequence[str]) -> dict[str, str]:
    """Return the flags of a command line, in any of the forms that Dapr accepts; one without value is ``true``."""
    flags: dict[str, str] = {}
    name = ""
    for each in args:
        if each.startswith("-"):
            name, equals, value = each.lstrip("-").partition("=")
            flags[name] = value if equals else "true"
            name = "" if equals else name
        elif name:
            flags[name], name = each, ""
    return flags


def _find_daprd(view: PodView) -> tuple[ContainerSpec, ContainerStatus | None, bool] | None:
    """Return the container of daprd, its status, and whether it is a native sidecar; None if there is none."""
    spec, status = view.spec, view.status
    native = [each for each in spec.init_containers if each.restart_policy == "Always"]
    for containers, statuses, is_native in (
        (spec.containers, status.container_statuses, False),
        (native, status.init_container_statuses, True),
    ):
        if containers:
            return containers[0], next(iter(statuses), None), is_native
    return None


def _container(
    spec: ContainerSpec, status: ContainerStatus | None, native: bool, flags: Mapping[str, str]
) -> Container:
    public = _port(flags.get("dapr-public-port", ""))
    # The injector adds --enable-metrics unless an annotation disables them; the application may use the port then.
    has_metrics = flags.get("enable-metrics", "false").lower() not in _FALSE
    metrics = _port(flags.get("metrics-port", _METRICS_PORT)) if has_metrics else 0
    if status is None:
        return Container(image=spec.image, public_port=public, metrics_port=metrics, native=native)
    state = status.state
    ended = state.terminated or status.last_state.terminated
    return Container(
        image=spec.image,
        id=status.container_id,
        started=state.running.started_at if state.running else None,
        restarts=status.restart_count,
        ready=status.ready,
        waiting=_why_not_running(status),
        waiting_message=state.waiting.message if state.waiting else "",
        last_exit=_describe(ended) if ended else "",
        killed=ended is not None and _is_killed(ended),
        public_port=public,
        metrics_port=metrics,
        native=native,
    )


def _why_not_running(status: ContainerStatus) -> str:
    state = status.state
    if state.waiting:
        return state.waiting.reason
    return (state.terminated.reason or "Terminated") if state.terminated else ""


def _describe(ended: Terminated) -> str:
    text = f"{ended.reason}, exit code {ended.exit_code}" if ended.reason else f"exit code {ended.exit_code}"
    return f"{text}: {ended.message.strip()}" if ended.message.strip() else text


def _is_killed(ended: Terminated) -> bool:
    """Return whether a container was ended by a signal; container runtimes add its number to 128."""
    return bool(ended.signal) or 0 < ended.exit_code - 128 <= _MAX_SIGNAL or ended.reason == _OUT_OF_MEMORY


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    return number if number <= _MAX_PORT else 0
