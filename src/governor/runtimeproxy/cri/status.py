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
from governor.runtimeproxy.cri.messages import container_of, pod_of, resources_of
from governor.runtimeproxy.environment import Environment, variable
from governor.runtimeproxy.store.records import ContainerRecord, ListedContainer, Sandbox, new_container
from governor.wire.hooks.workload import Resources, overlaid

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
    listed: ListedContainer,
    response: cri_pb2.ContainerStatusResponse,
    pod: Sandbox,
    *,
    with_environment: bool = False,
) -> ContainerRecord:
    """Return the container that a list entry and a verbose status describe."""
    info = _info(response.info)
    tree = info.get("config")
    tree = dict(tree) if isinstance(tree, dict) else {}
    environment = Environment(_variables(tree.pop("envs", None), _spec_environment(info)))
    container = container_of(_parsed(tree, cri_pb2.ContainerConfig()), pod.pod.cgroup_parent, listed.id)
    described = msgspec.structs.replace(
        container,
        name=listed.name,
        attempt=listed.attempt,
        annotations={**container.annotations, **listed.annotations},
        resources=overlaid(container.resources, reported_resources(response)),
    )
    return new_container(listed.sandbox_id, described, environment, with_environment=with_environment)


def reported_resources(response: cri_pb2.ContainerStatusResponse) -> Resources | None:
    """Return the resources in a status, if it has any.

    A swap limit equal to the memory limit is left out: containerd reports one if none was set.
    """
    if not response.status.resources.HasField("linux"):
        return None
    found = resources_of(response.status.resources.linux)
    is_implied = found.memory_swap_limit_in_bytes == found.memory_limit_in_bytes
    return msgspec.structs.replace(found, memory_swap_limit_in_bytes=0) if is_implied else found


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
    return [variable(each["key"], _value(str(each.get("value") or ""), in_spec.get(each["key"]))) for each in named]


def _value(text: str, in_spec: str | None) -> bytes:
    """Return a value that newer runtimes encode in base64 and older ones do not; the process environment decides."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text.encode()
    if in_spec is None or decoded.decode(errors="replace") == in_spec:
        return decoded
    return text.encode()
