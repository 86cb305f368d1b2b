"""The calls of the runtime service that concern the proxy: their hooks, what plugins are asked, where changes go.

| call | plugins are asked before | told after | remembered when the runtime has done it |
|---|---|---|---|
| RunPodSandbox | PreRunPodSandbox | | the sandbox |
| StopPodSandbox | | PostStopPodSandbox | |
| RemovePodSandbox | | | its record goes |
| UpdatePodSandboxResources | | | its resources |
| CreateContainer | PreCreateContainer | | the container |
| StartContainer | PreStartContainer | PostStartContainer | |
| StopContainer | | PostStopContainer | |
| RemoveContainer | | | its record goes |
| UpdateContainerResources | PreUpdateContainerResources | | its resources and annotations |

Every other call passes unread. Both versions of the service are the same here.
"""

import copy
import enum
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from governor.errors import GovernorError, Kind, invalid
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.grpc.framing import unwrap, wrap
from governor.runtimeproxy.hooks.changes import Change, FieldPath
from governor.runtimeproxy.hooks.merging import put
from governor.runtimeproxy.store.records import Container, Known, add_pod, container_of, pod_of, updated_container
from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest, PodSandboxHookRequest
from governor.wire.hooks.points import Hook, Request

SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")

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
R = TypeVar("R", bound=CriRequest)


class Call(enum.StrEnum):
    """A call that is hooked or changes what is remembered, under its name in the service."""

    RUN_POD_SANDBOX = "RunPodSandbox"
    STOP_POD_SANDBOX = "StopPodSandbox"
    REMOVE_POD_SANDBOX = "RemovePodSandbox"
    UPDATE_POD_SANDBOX_RESOURCES = "UpdatePodSandboxResources"
    CREATE_CONTAINER = "CreateContainer"
    START_CONTAINER = "StartContainer"
    STOP_CONTAINER = "StopContainer"
    REMOVE_CONTAINER = "RemoveContainer"
    UPDATE_CONTAINER_RESOURCES = "UpdateContainerResources"

    @property
    def shape(self) -> "Shape":
        """What the call looks like and which hooks it has."""
        return _SHAPES[self]


class Shape(msgspec.Struct, frozen=True):
    """One call: its request, its hooks, and the places in its request for the fields of a hook's answer."""

    request: type[CriRequest]
    pre: Hook | None = None
    post: Hook | None = None
    places: Mapping[str, FieldPath] = {}


_SHAPES: Final = {
    Call.RUN_POD_SANDBOX: Shape(
        cri_pb2.RunPodSandboxRequest,
        pre=Hook.PRE_RUN_POD_SANDBOX,
        places={
            "labels": ("config", "labels"),
            "annotations": ("config", "annotations"),
            "cgroup_parent": ("config", "linux", "cgroup_parent"),
            "resources": ("config", "linux", "resources"),
        },
    ),
    Call.STOP_POD_SANDBOX: Shape(cri_pb2.StopPodSandboxRequest, post=Hook.POST_STOP_POD_SANDBOX),
    Call.REMOVE_POD_SANDBOX: Shape(cri_pb2.RemovePodSandboxRequest),
    Call.UPDATE_POD_SANDBOX_RESOURCES: Shape(cri_pb2.UpdatePodSandboxResourcesRequest),
    Call.CREATE_CONTAINER: Shape(
        cri_pb2.CreateContainerRequest,
        pre=Hook.PRE_CREATE_CONTAINER,
        places={
            "container_annotations": ("config", "annotations"),
            "container_resources": ("config", "linux", "resources"),
            "container_envs": ("config", "envs"),
            "pod_cgroup_parent": ("sandbox_config", "linux", "cgroup_parent"),
        },
    ),
    Call.START_CONTAINER: Shape(
        cri_pb2.StartContainerRequest, pre=Hook.PRE_START_CONTAINER, post=Hook.POST_START_CONTAINER
    ),
    Call.STOP_CONTAINER: Shape(cri_pb2.StopContainerRequest, post=Hook.POST_STOP_CONTAINER),
    Call.REMOVE_CONTAINER: Shape(cri_pb2.RemoveContainerRequest),
    Call.UPDATE_CONTAINER_RESOURCES: Shape(
        cri_pb2.UpdateContainerResourcesRequest,
        pre=Hook.PRE_UPDATE_CONTAINER_RESOURCES,
        places={"container_annotations": ("annotations",), "container_resources": ("linux",)},
    ),
}

CALLS: Final[Mapping[str, Call]] = {f"/{service}/{call}": call for service in SERVICES for call in Call}
"""Every call by the ``:path`` of its requests."""

CALLS_OF_HOOKS: Final[Mapping[Hook, str]] = {
    hook: str(call) for call, shape in _SHAPES.items() for hook in (shape.pre, shape.post) if hook is not None
}
"""The call by which plugins are asked, or told, at each hook."""


def read(call: Call, body: bytes, encoding: str = "") -> CriRequest:
    """The request in a body; INVALID, UNIMPLEMENTED or EXHAUSTED if it cannot be read, and then nobody can be asked."""
    message = unwrap(body, encoding)
    kind = call.shape.request
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise invalid("cri-message", f"the body of {call} is no {kind.DESCRIPTOR.name}") from error


def write(request: CriRequest) -> bytes:
    """The body with this request."""
    return wrap(request.SerializeToString(deterministic=True))


def effective(request: CriRequest, change: Change) -> bool:
    """Whether a change makes a difference to the request.

    An update leaves alone what it does not specify: it can cease to set a cpuset, but it cannot clear one.
    """
    if isinstance(request, cri_pb2.UpdateContainerResourcesRequest):
        match change.path, change.new:
            case ("container_resources", cpuset), "":
                return bool(getattr(request.linux, cpuset))
    return True


def changed(call: Call, request: R, changes: Iterable[Change]) -> R:
    """The request with these changes; fields that nobody changed, known or not, are as they came."""
    result = copy.deepcopy(request)
    for change in changes:
        put(result, (*call.shape.places[change.path[0]], *change.path[1:]), change.new)
    return result


def question(request: CriRequest, known: Known) -> Request:
    """What the plugins of a hooked call are asked or told; NOT_FOUND if it concerns something that nobody knows."""
    match request:
        case cri_pb2.RunPodSandboxRequest():
            return pod_of(request.config, request.runtime_handler)
        case cri_pb2.StopPodSandboxRequest():
            return _pod(request.pod_sandbox_id, known)
        case cri_pb2.CreateContainerRequest():
            return add_pod(container_of(request), _pod_of_new_container(request, known))
        case cri_pb2.UpdateContainerResourcesRequest():
            return _whole(updated_container(_container(request.container_id, known), request), known)
        case cri_pb2.StartContainerRequest() | cri_pb2.StopContainerRequest():
            return _whole(_container(request.container_id, known), known)
        case _:
            raise ValueError(f"{type(request).__name__} is not hooked")


def _pod(sandbox_id: str, known: Known) -> PodSandboxHookRequest:
    sandbox = known.sandbox(sandbox_id)
    if sandbox is None:
        raise _unknown("sandbox", sandbox_id)
    return sandbox.pod


def _pod_of_new_container(request: cri_pb2.CreateContainerRequest, known: Known) -> PodSandboxHookRequest:
    """What was remembered of the pod; of a sandbox made behind our back, what kubelet says about it here."""
    sandbox = known.sandbox(request.pod_sandbox_id)
    if sandbox is not None:
        return sandbox.pod
    if request.HasField("sandbox_config"):
        return pod_of(request.sandbox_config)
    raise _unknown("sandbox", request.pod_sandbox_id)


def _container(container_id: str, known: Known) -> Container:
    container = known.container(container_id)
    if container is None:
        raise _unknown("container", container_id)
    return container


def _whole(container: Container, known: Known) -> ContainerResourceHookRequest:
    return add_pod(container.container, _pod(container.sandbox_id, known))


def _unknown(kind: str, name: str) -> GovernorError:
    message = f"the runtime proxy knows no {kind} {name!r}, so plugins cannot be asked about it"
    return GovernorError(Kind.NOT_FOUND, f"unknown-{kind}", message)
