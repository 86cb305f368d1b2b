"""Records from the runtime's verbose status of a sandbox or container.

containerd puts the whole configuration into the JSON of a verbose status. Without it a record has what the status
itself contains.
"""

import base64
import binascii
import copy
from typing import Any, Final

import msgspec

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.resources import overlay
from governor.runtimeproxy.store.records import Container, Sandbox, described, new_container, pod_of, with_id

_INFO: Final = "info"


def sandbox_from_status(response: cri_pb2.PodSandboxStatusResponse) -> Sandbox:
    """Return the sandbox that a verbose status describes."""
    status, info = response.status, _info(response.info)
    config = _parsed(info.get("config"), cri_pb2.PodSandboxConfig())
    config.metadata.CopyFrom(status.metadata)
    config.labels.update(status.labels)
    config.annotations.update(status.annotations)
    return Sandbox(status.id, pod_of(config, status.runtime_handler))


def container_from_status(
    listed: cri_pb2.Container,
    response: cri_pb2.ContainerStatusResponse,
    pod: Sandbox,
    *,
    with_environment: bool = False,
) -> Container:
    """Return the container that a list entry and a verbose status describe."""
    info = _info(response.info)
    tree = info.get("config")
    tree = dict(tree) if isinstance(tree, dict) else {}
    variables = tree.pop("envs", None)
    request = cri_pb2.CreateContainerRequest(pod_sandbox_id=listed.pod_sandbox_id)
    request.config.CopyFrom(_parsed(tree, cri_pb2.ContainerConfig()))
    request.config.metadata.CopyFrom(listed.metadata)
    request.config.annotations.update(listed.annotations)
    request.config.envs.extend(_variables(variables, _spec_environment(info)))
    if response.status.resources.HasField("linux"):
        overlay(_without_implied_swap(response.status.resources.linux), request.config.linux.resources)
    request.sandbox_config.linux.cgroup_parent = pod.pod.cgroup_parent
    return with_id(new_container(request, with_environment=with_environment), listed.id)


def refreshed_container(container: Container, response: cri_pb2.ContainerStatusResponse) -> Container:
    """Return the container with the resources in its current status, if it has any."""
    if not response.status.resources.HasField("linux"):
        return container
    message = container.message
    overlay(_without_implied_swap(response.status.resources.linux), message.container_resources)
    return described(container, message)


def _without_implied_swap(linux: cri_pb2.LinuxContainerResources) -> cri_pb2.LinuxContainerResources:
    """Clear a swap limit equal to the memory limit, which containerd reports if none was set."""
    if linux.memory_swap_limit_in_bytes == linux.memory_limit_in_bytes:
        linux.memory_swap_limit_in_bytes = 0
    return linux


def _info(info: Any) -> dict[str, Any]:
    try:
        tree = msgspec.json.decode(info.get(_INFO, "{}"))
    except msgspec.DecodeError:
        return {}
    return tree if isinstance(tree, dict) else {}


def _parsed(tree: Any, empty: Any) -> Any:
    """Return the configuration in the JSON, or ``empty`` if it cannot be parsed."""
    from google.protobuf import json_format  # noqa: PLC0415 - costs memory, needed only with plugins

    if not isinstance(tree, dict):
        return empty
    message = copy.deepcopy(empty)
    try:
        json_format.ParseDict(tree, message, ignore_unknown_fields=True)
    except json_format.ParseError:
        return empty
    return message


def _spec_environment(info: dict[str, Any]) -> dict[str, str]:
    try:
        lines = info["runtimeSpec"]["process"]["env"]
        return dict(line.split("=", 1) for line in lines)
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _variables(given: Any, in_spec: dict[str, str]) -> list[bytes]:
    found = given if isinstance(given, list) else []
    named = [each for each in found if isinstance(each, dict) and isinstance(each.get("key"), str)]
    return [
        cri_pb2.KeyValue(
            key=each["key"], value=_value(str(each.get("value") or ""), in_spec.get(each["key"]))
        ).SerializeToString()
        for each in named
    ]


def _value(text: str, in_spec: str | None) -> bytes:
    """Return a value that newer runtimes encode in base64 and older ones do not; the process environment decides."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text.encode()
    if in_spec is None or decoded.decode(errors="replace") == in_spec:
        return decoded
    return text.encode()
