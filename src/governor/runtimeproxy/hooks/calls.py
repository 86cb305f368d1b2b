"""The CRI calls that the proxy holds: their hook points, where changes are written, how they are encoded.

| call | hook before | hook after | recorded when the runtime has succeeded |
|---|---|---|---|
| RunPodSandbox | PreRunPodSandbox | | the sandbox |
| StopPodSandbox | | PostStopPodSandbox | |
| RemovePodSandbox | | | the sandbox is deleted |
| UpdatePodSandboxResources | | | its resources |
| CreateContainer | PreCreateContainer | | the container |
| StartContainer | PreStartContainer | PostStartContainer | |
| StopContainer | | PostStopContainer | |
| RemoveContainer | | | the container is deleted |
| UpdateContainerResources | PreUpdateContainerResources | | its resources and annotations |

All other calls pass unread. Both versions of the runtime service are treated alike.
"""

import enum
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from governor.errors import invalid
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.grpc.framing import unwrap, wrap
from governor.runtimeproxy.hooks.changes import FieldPath
from governor.wire.hooks.points import Hook

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


class Call(enum.StrEnum):
    """A call that has hooks or changes a record, by its method name."""

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
        """Return the call's request type, hooks and targets."""
        return _SHAPES[self]


class Shape(msgspec.Struct, frozen=True):
    """Request type of a call, its hooks, and the path in its request for each field of a hook response."""

    request: type[CriRequest]
    pre: Hook | None = None
    post: Hook | None = None
    targets: Mapping[str, FieldPath] = {}


_SHAPES: Final = {
    Call.RUN_POD_SANDBOX: Shape(
        cri_pb2.RunPodSandboxRequest,
        pre=Hook.PRE_RUN_POD_SANDBOX,
        targets={
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
        targets={
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
        targets={"container_annotations": ("annotations",), "container_resources": ("linux",)},
    ),
}

CALLS: Final[Mapping[str, Call]] = {f"/{service}/{call}": call for service in SERVICES for call in Call}
"""Calls by ``:path``."""

CALL_OF_HOOK: Final[Mapping[Hook, str]] = {
    hook: str(call) for call, shape in _SHAPES.items() for hook in (shape.pre, shape.post) if hook is not None
}
"""The call to which each hook belongs."""


def read(call: Call, body: bytes, encoding: str = "") -> CriRequest:
    """Return the request in a body; raise INVALID, UNIMPLEMENTED or EXHAUSTED if it cannot be decoded."""
    message = unwrap(body, encoding)
    kind = call.shape.request
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise invalid("cri-message", f"the body of {call} is not a {kind.DESCRIPTOR.name}") from error


def write(request: CriRequest) -> bytes:
    """Return the body that carries a request."""
    return wrap(request.SerializeToString(deterministic=True))
