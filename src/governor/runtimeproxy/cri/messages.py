"""The requests of the Container Runtime Interface that are held: decoding, translating, changing, encoding.

Both versions of the runtime service are treated alike.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache, partial
from typing import Any, Final, TypeAlias, cast

from google.protobuf.message import DecodeError

from governor.errors import invalid
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.environment import Environment
from governor.runtimeproxy.grpc.framing import unwrap, wrap
from governor.runtimeproxy.hooks.calls import (
    ANNOTATIONS,
    CGROUP_PARENT,
    CONTAINER_ANNOTATIONS,
    CONTAINER_RESOURCES,
    DEVICES,
    ENVIRONMENT,
    LABELS,
    MOUNTS,
    POD_CGROUP_PARENT,
    RESOURCES,
    Call,
)
from governor.runtimeproxy.hooks.changes import Change, FieldPath, Value
from governor.runtimeproxy.hooks.requests import Request
from governor.wire.hooks import encoding, hooks_pb2
from governor.wire.hooks.workload import NO_IDENTITY, Container, Pod, PodIdentity, Resources

SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
CALLS: Final[Mapping[str, Call]] = {f"/{service}/{call}": call for service in SERVICES for call in Call}
"""Calls by ``:path``."""

CriRequest: TypeAlias = (
    cri_pb2.RunPodSandboxRequest
    | cri_pb2.StopPodSandboxRequest
    | cri_pb2.RemovePodSandboxRequest
    | cri_pb2.UpdatePodSandboxResourcesRequest
    | cri_pb2.CreateContainerRequest
    | cri_pb2.StartContainerRequest
    | cri_pb2.StopContainerRequest
    | cri_pb2.RemoveContainerRequest
    | cri_pb2.UpdateContainerResourcesRequest
)

KINDS: Final[Mapping[Call, type[CriRequest]]] = {
    Call.RUN_POD_SANDBOX: cri_pb2.RunPodSandboxRequest,
    Call.STOP_POD_SANDBOX: cri_pb2.StopPodSandboxRequest,
    Call.REMOVE_POD_SANDBOX: cri_pb2.RemovePodSandboxRequest,
    Call.UPDATE_POD_SANDBOX_RESOURCES: cri_pb2.UpdatePodSandboxResourcesRequest,
    Call.CREATE_CONTAINER: cri_pb2.CreateContainerRequest,
    Call.START_CONTAINER: cri_pb2.StartContainerRequest,
    Call.STOP_CONTAINER: cri_pb2.StopContainerRequest,
    Call.REMOVE_CONTAINER: cri_pb2.RemoveContainerRequest,
    Call.UPDATE_CONTAINER_RESOURCES: cri_pb2.UpdateContainerResourcesRequest,
}
"""The message of each call."""

PLACES: Final[Mapping[Call, Mapping[str, FieldPath]]] = {
    Call.RUN_POD_SANDBOX: {
        LABELS: ("config", "labels"),
        ANNOTATIONS: ("config", "annotations"),
        CGROUP_PARENT: ("config", "linux", "cgroup_parent"),
        RESOURCES: ("config", "linux", "resources"),
    },
    Call.CREATE_CONTAINER: {
        CONTAINER_ANNOTATIONS: ("config", "annotations"),
        CONTAINER_RESOURCES: ("config", "linux", "resources"),
        ENVIRONMENT: ("config", "envs"),
        POD_CGROUP_PARENT: ("sandbox_config", "linux", "cgroup_parent"),
        MOUNTS: ("config", "mounts"),
        DEVICES: ("config", "devices"),
    },
    Call.UPDATE_CONTAINER_RESOURCES: {
        CONTAINER_ANNOTATIONS: ("annotations",),
        CONTAINER_RESOURCES: ("linux",),
    },
}
"""Where a message has the fields that can be changed."""
_KEYS: Final = {"hugepage_limits": "page_size", "mounts": "container_path", "devices": "container_path"}
"""The field that names an item of a list."""
_READ_ONLY: Final = ":ro"


class CriMessage:
    """A decoded request. Its protobuf message must not be modified."""

    __slots__ = ("message", "request")

    def __init__(self, call: Call, message: CriRequest) -> None:
        self.message = message
        self.request = request_of(call, message)

    def carries(self, path: FieldPath) -> bool:
        """Return whether the request can have this field."""
        return path[0] in self.request.call.shape.fields

    def edited(self, changes: Sequence[Change]) -> bytes:
        """Return the body of the request with these changes; all other fields, known or not, are kept."""
        return write(self.with_changes(changes))

    def with_changes(self, changes: Sequence[Change]) -> CriRequest:
        """Return a copy of the message with these changes."""
        result, places, variables = _copied(self.message), PLACES.get(self.request.call, {}), []
        for change in changes:
            if change.path[0] == ENVIRONMENT:
                variables.append((change.path[1], change.new))
            else:
                set_field(result, (*places[change.path[0]], *change.path[1:]), change.new)
        if variables and isinstance(result, cri_pb2.CreateContainerRequest):
            entries = self.request.environment.with_changes(variables).entries
            del result.config.envs[:]
            result.config.envs.extend(entries)
        return result


class CriCodec:
    """Reads the bodies of CRI calls."""

    def read(self, call: Call, body: bytes, encoding: str = "") -> CriMessage:
        """Decode a request; raise INVALID, UNIMPLEMENTED or EXHAUSTED if that is impossible."""
        message, kind = unwrap(body, encoding), KINDS[call]
        try:
            return CriMessage(call, kind.FromString(message))
        except DecodeError as error:
            raise invalid("cri-message", f"the body of {call} is not a {kind.DESCRIPTOR.name}") from error

    def created_id(self, call: Call, body: bytes, encoding: str = "") -> str:
        """Return the id of the sandbox or container in a response; raise like ``read``."""
        message = unwrap(body, encoding)
        try:
            if call is Call.RUN_POD_SANDBOX:
                return cri_pb2.RunPodSandboxResponse.FromString(message).pod_sandbox_id
            return cri_pb2.CreateContainerResponse.FromString(message).container_id
        except DecodeError as error:
            raise invalid("cri-message", f"the response to {call} cannot be decoded") from error


def _copied(message: CriRequest) -> CriRequest:
    result: Any = type(message)()
    result.CopyFrom(message)
    return cast("CriRequest", result)


def write(message: CriRequest) -> bytes:
    """Return the body that carries a request."""
    return wrap(message.SerializeToString(deterministic=True))


def request_of(call: Call, message: CriRequest) -> Request:
    """Return what a message asks."""
    match message:
        case cri_pb2.RunPodSandboxRequest():
            return Request(call, pod=pod_of(message.config, message.runtime_handler))
        case cri_pb2.CreateContainerRequest():
            return _creation(message)
        case cri_pb2.UpdateContainerResourcesRequest():
            resources = resources_of(message.linux) if message.HasField("linux") else None
            annotations = dict(message.annotations)
            return Request(call, "", message.container_id, resources=resources, annotations=annotations)
        case cri_pb2.UpdatePodSandboxResourcesRequest():
            resources = resources_of(message.resources) if message.HasField("resources") else None
            overhead = resources_of(message.overhead) if message.HasField("overhead") else None
            return Request(call, message.pod_sandbox_id, resources=resources, overhead=overhead)
        case cri_pb2.StopPodSandboxRequest() | cri_pb2.RemovePodSandboxRequest():
            return Request(call, message.pod_sandbox_id)
        case _:
            return Request(call, "", message.container_id)


def _creation(message: cri_pb2.CreateContainerRequest) -> Request:
    has_pod, config = message.HasField("sandbox_config"), message.config
    return Request(
        Call.CREATE_CONTAINER,
        message.pod_sandbox_id,
        describe_pod=partial(pod_of, message.sandbox_config) if has_pod else None,
        container=container_of(config, message.sandbox_config.linux.cgroup_parent if has_pod else ""),
        environment=Environment(list(config.envs)),
    )


def pod_of(config: cri_pb2.PodSandboxConfig, runtime_handler: str = "") -> Pod:
    """Return the pod that a configuration describes."""
    linux = config.linux
    return Pod(
        identity_of(config.metadata) if config.HasField("metadata") else NO_IDENTITY,
        dict(config.labels),
        dict(config.annotations),
        linux.cgroup_parent,
        runtime_handler,
        resources_of(linux.resources) if linux.HasField("resources") else None,
        resources_of(linux.overhead) if linux.HasField("overhead") else None,
    )


def entries_of(entries: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of a message's map; ``dict`` takes twice the time."""
    return {key: entries[key] for key in entries}


def identity_of(metadata: cri_pb2.PodSandboxMetadata) -> PodIdentity:
    """Return which pod it is."""
    return PodIdentity(metadata.name, metadata.uid, metadata.namespace, metadata.attempt)


def container_of(config: cri_pb2.ContainerConfig, cgroup_parent: str, container_id: str = "") -> Container:
    """Return the container that a configuration describes."""
    metadata, linux = config.metadata, config.linux
    resources = resources_of(linux.resources) if linux.HasField("resources") else None
    mounts, devices = config.mounts, config.devices
    return Container(
        container_id,
        metadata.name,
        metadata.attempt,
        entries_of(config.annotations),
        resources,
        cgroup_parent,
        {each.container_path: f"{each.host_path}{_READ_ONLY * each.readonly}" for each in mounts} if mounts else {},
        {each.container_path: f"{each.host_path}:{each.permissions}" for each in devices} if devices else {},
    )


def resources_of(linux: cri_pb2.LinuxContainerResources) -> Resources:
    """Return the resources in a message, which has the fields of the hook protocol's."""
    return encoding.resources_of(cast("hooks_pb2.LinuxContainerResources", linux))


def set_field(message: Any, path: FieldPath, value: Value) -> None:
    """Set a field of a message, or an entry of a map or a list; None removes an entry."""
    *parents, last = path
    for parent in parents:
        message = getattr(message, parent)
    kind: type = type(message)
    if _is_map(kind):
        if value is None:
            message.pop(last, None)
        else:
            message[last] = str(value)
    elif hasattr(message, "DESCRIPTOR"):
        setattr(message, last, value)
    else:
        _set_item(message, _KEYS[parents[-1]], last, value)


@cache
def _is_map(kind: type) -> bool:
    """Return whether a type is one of protobuf's maps; to ask an object takes longer than to set its entry."""
    return issubclass(kind, MutableMapping)


def _set_item(items: Any, key: str, name: str, value: Value) -> None:
    """Set the item of a list that has this name, in place or appended; None removes it."""
    found = [index for index, each in enumerate(items) if getattr(each, key) == name]
    if value is None:
        for index in reversed(found):
            del items[index]
        return
    for each in [items[index] for index in found] or [items.add(**{key: name})]:
        match each:
            case cri_pb2.Mount():
                each.host_path, each.readonly = str(value).removesuffix(_READ_ONLY), str(value).endswith(_READ_ONLY)
            case cri_pb2.Device():
                each.host_path, _, each.permissions = str(value).rpartition(":")
            case _:
                each.limit = value
