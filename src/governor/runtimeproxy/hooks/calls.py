"""The calls that the proxy holds, and their hook points.

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

They have the names of CRI. All other calls pass unread.
"""

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from governor.wire.hooks.points import Hook

LABELS: Final = "labels"
ANNOTATIONS: Final = "annotations"
CGROUP_PARENT: Final = "cgroup_parent"
RESOURCES: Final = "resources"
CONTAINER_ANNOTATIONS: Final = "container_annotations"
CONTAINER_RESOURCES: Final = "container_resources"
POD_CGROUP_PARENT: Final = "pod_cgroup_parent"
ENVIRONMENT: Final = "container_envs"
MOUNTS: Final = "container_mounts"
DEVICES: Final = "container_devices"
"""First parts of the paths of changes, named as in the hook protocol; it has neither of the last two."""


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
        """Return the call's hooks, and what they can change."""
        return _SHAPES[self]


class Shape(msgspec.Struct, frozen=True):
    """Hooks of a call, and the fields of its request that a hook can change."""

    pre: Hook | None = None
    post: Hook | None = None
    fields: frozenset[str] = frozenset()


_SHAPES: Final = {
    Call.RUN_POD_SANDBOX: Shape(
        pre=Hook.PRE_RUN_POD_SANDBOX, fields=frozenset({LABELS, ANNOTATIONS, CGROUP_PARENT, RESOURCES})
    ),
    Call.STOP_POD_SANDBOX: Shape(post=Hook.POST_STOP_POD_SANDBOX),
    Call.REMOVE_POD_SANDBOX: Shape(),
    Call.UPDATE_POD_SANDBOX_RESOURCES: Shape(),
    Call.CREATE_CONTAINER: Shape(
        pre=Hook.PRE_CREATE_CONTAINER,
        fields=frozenset({CONTAINER_ANNOTATIONS, CONTAINER_RESOURCES, ENVIRONMENT, POD_CGROUP_PARENT, MOUNTS, DEVICES}),
    ),
    Call.START_CONTAINER: Shape(pre=Hook.PRE_START_CONTAINER, post=Hook.POST_START_CONTAINER),
    Call.STOP_CONTAINER: Shape(post=Hook.POST_STOP_CONTAINER),
    Call.REMOVE_CONTAINER: Shape(),
    Call.UPDATE_CONTAINER_RESOURCES: Shape(
        pre=Hook.PRE_UPDATE_CONTAINER_RESOURCES, fields=frozenset({CONTAINER_ANNOTATIONS, CONTAINER_RESOURCES})
    ),
}

CALL_OF_HOOK: Final[Mapping[Hook, str]] = {
    hook: str(call) for call, shape in _SHAPES.items() for hook in (shape.pre, shape.post) if hook is not None
}
"""The call to which each hook belongs."""
