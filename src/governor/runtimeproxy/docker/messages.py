"""The requests of the Docker Engine API that are held: decoding, translating, changing, encoding."""

from collections.abc import Sequence
from typing import Final

import msgspec

from governor.errors import invalid
from governor.runtimeproxy.docker import configuration
from governor.runtimeproxy.docker.configuration import Object
from governor.runtimeproxy.docker.names import (
    ANNOTATION_PREFIX,
    INTERNAL,
    KubernetesName,
    annotations,
    kubernetes_name,
    pod_labels,
)
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
from governor.wire.hooks.workload import Pod

_UNLIMITED: Final = -1
_NOT_IN_AN_UPDATE: Final = "oom_score_adj"


class ContainerRequest(msgspec.Struct, frozen=True, array_like=True):
    """A held request: the part of its target that matters, and its body."""

    container: str
    """The id of the container; its name, if it is created."""
    body: bytes = b""
    sandbox_id: str = ""
    """Of a container that is created, the sandbox of its pod if its labels do not have it."""

    def encoded(self) -> bytes:
        """Return the request as one text of bytes, as a codec reads it."""
        return _ENCODER.encode(self)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ContainerRequest)
_SANDBOX_CALLS: Final = frozenset({Call.STOP_POD_SANDBOX, Call.REMOVE_POD_SANDBOX})


def created_name(name: str, body: bytes) -> KubernetesName | None:
    """Return which of Kubernetes' containers a creation asks for, or None; raise INVALID if it cannot be decoded."""
    return kubernetes_name(name, configuration.labels_of(Object(body)))


class DockerMessage:
    """A decoded request."""

    __slots__ = ("_body", "request")

    def __init__(self, call: Call, given: ContainerRequest) -> None:
        self._body = given.body
        self.request = _request(call, given)

    def carries(self, path: FieldPath) -> bool:
        """Return whether the request can have this field."""
        call = self.request.call
        match path:
            case (str(kind), *_) if kind not in call.shape.fields:
                return False
            case (("resources" | "container_resources"), field, *_):
                is_update = call is Call.UPDATE_CONTAINER_RESOURCES
                return field in configuration.RESOURCE_FIELDS and not (is_update and field == _NOT_IN_AN_UPDATE)
            case ("container_annotations", *_):
                return call is not Call.UPDATE_CONTAINER_RESOURCES
            case ("labels", key):
                return key not in INTERNAL and not key.startswith(ANNOTATION_PREFIX)
            case _:
                return True

    def edited(self, changes: Sequence[Change]) -> bytes:
        """Return the body of the request with these changes; all other fields, known or not, are kept."""
        config = Object(self._body or b"{}")
        if self.request.call is Call.UPDATE_CONTAINER_RESOURCES:
            for change in changes:
                configuration.set_resource(config, change.path[1], change.new)
            return config.encoded()
        return _edited_creation(config, changes)


def _edited_creation(config: Object, changes: Sequence[Change]) -> bytes:
    host, labels, variables = config.inner("HostConfig"), configuration.labels_of(config), []
    for change in changes:
        if change.path[0] in (LABELS, ANNOTATIONS, CONTAINER_ANNOTATIONS):
            _set_label(labels, change)
        elif change.path[0] == ENVIRONMENT:
            variables.append((change.path[1], change.new))
        else:
            _set_in_host(host, change.path, change.new)
    config.set("HostConfig", host)
    if any(change.path[0] in (LABELS, ANNOTATIONS, CONTAINER_ANNOTATIONS) for change in changes):
        config.set("Labels", labels)
    if variables:
        configuration.set_variables(config, variables)
    return config.encoded()


def _set_label(labels: dict[str, str], change: Change) -> None:
    kind, key = change.path
    name = key if kind == LABELS else f"{ANNOTATION_PREFIX}{key}"
    if change.new is None:
        labels.pop(name, None)
    else:
        labels[name] = str(change.new)


def _set_in_host(host: Object, path: FieldPath, value: Value) -> None:
    kind, *keys = path
    if kind in (CGROUP_PARENT, POD_CGROUP_PARENT):
        host.set("CgroupParent", value)
    elif kind in (RESOURCES, CONTAINER_RESOURCES):
        # A container is created without a limit by 0; -1 is refused.
        is_unlimited = keys[0] == "memory_limit_in_bytes" and value == _UNLIMITED
        configuration.set_resource(host, keys[0], 0 if is_unlimited else value)
    elif kind == MOUNTS:
        configuration.set_mount(host, keys[0], value)
    elif kind == DEVICES:
        configuration.set_device(host, keys[0], value)


class DockerCodec:
    """Reads the bodies of held requests."""

    def read(self, call: Call, body: bytes, _encoding: str = "") -> DockerMessage:
        """Decode a request; raise INVALID if that is impossible."""
        return DockerMessage(call, _DECODER.decode(body))

    def created_id(self, call: Call, body: bytes, _encoding: str = "") -> str:
        """Return the id of the container in a response; raise INVALID if it has none."""
        found = Object(body).get("Id", str, "")
        if not found:
            raise invalid("docker-message", f"the response to {call} has no id")
        return found


def _request(call: Call, given: ContainerRequest) -> Request:
    match call:
        case Call.RUN_POD_SANDBOX | Call.CREATE_CONTAINER:
            return _creation(call, given)
        case Call.UPDATE_CONTAINER_RESOURCES:
            return Request(call, "", given.container, resources=configuration.resources_of(Object(given.body)))
        case Call.UPDATE_POD_SANDBOX_RESOURCES:
            return Request(call, given.container, resources=configuration.resources_of(Object(given.body)))
        case _ if call in _SANDBOX_CALLS:
            return Request(call, given.container)
        case _:
            return Request(call, "", given.container)


def _creation(call: Call, given: ContainerRequest) -> Request:
    config = Object(given.body)
    host, name = config.inner("HostConfig"), created_name(given.container, given.body)
    if name is None:
        raise invalid("docker-message", "the container is not one of Kubernetes")
    if call is Call.RUN_POD_SANDBOX:
        return Request(call, pod=configuration.pod_of(name, config, host))
    labels = configuration.labels_of(config)
    sandbox_id = name.sandbox_id or given.sandbox_id
    pod = Pod(name.pod, pod_labels(labels), annotations(labels), host.get("CgroupParent", str, ""))
    return Request(
        call,
        sandbox_id,
        # Without a sandbox, the pod is what its container's labels say.
        describe_pod=None if sandbox_id else lambda: pod,
        container=configuration.container_of(name, config, host),
        environment=configuration.environment_of(config),
    )
