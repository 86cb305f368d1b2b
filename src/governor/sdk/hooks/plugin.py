"""A plugin as a class with one method per hook, and its requests and changes as frozen structs."""

from collections.abc import Mapping, Sequence

import msgspec

from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import Container, Pod, Resources


class Rejection(Exception):  # noqa: N818 - an answer, not a defect
    """Raised by a plugin to reject a call; with failure policy ``Fail`` kubelet gets the message."""


class PodRequest(msgspec.Struct, frozen=True):
    """A pod that starts or has stopped."""

    pod: Pod


class ContainerRequest(msgspec.Struct, frozen=True):
    """A container and its pod; before the container is created it has no id."""

    pod: Pod
    container: Container
    environment: Mapping[str, str] = {}
    """Variables, when it is created; later only if the registration has ``"remember": ["environment"]``."""


class PodChanges(msgspec.Struct, frozen=True):
    """What is changed in a pod that starts; what is unset stays."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    cgroup_parent: str = ""
    resources: Resources | None = None


class ContainerChanges(msgspec.Struct, frozen=True):
    """What is changed in a container; what is unset stays."""

    annotations: Mapping[str, str] = {}
    resources: Resources | None = None
    environment: Mapping[str, str] = {}
    pod_cgroup_parent: str = ""


class PodState(msgspec.Struct, frozen=True):
    """A pod that exists when the proxy has connected, with its containers."""

    sandbox_id: str
    pod: Pod
    containers: tuple[Container, ...] = ()


class Plugin:
    """A plugin. Override the hooks it wants; ``hooks`` are those that are overridden.

    A hook that returns None, and any hook after a call, changes nothing.
    """

    def pre_run_pod_sandbox(self, request: PodRequest) -> PodChanges | None:
        """Change a pod before it starts."""

    def post_stop_pod_sandbox(self, request: PodRequest) -> None:
        """Notice that a pod has stopped."""

    def pre_create_container(self, request: ContainerRequest) -> ContainerChanges | None:
        """Change a container before it is created."""

    def pre_start_container(self, request: ContainerRequest) -> None:
        """Notice that a container is to be started."""

    def post_start_container(self, request: ContainerRequest) -> None:
        """Notice that a container has started."""

    def post_stop_container(self, request: ContainerRequest) -> None:
        """Notice that a container has stopped."""

    def pre_update_container_resources(self, request: ContainerRequest) -> ContainerChanges | None:
        """Change an update of a container's resources; the request has the resources after the update."""

    def synchronize(self, pods: Sequence[PodState]) -> None:
        """Learn what exists, whenever the proxy has connected."""

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """Return the hooks that this plugin overrides."""
        return tuple(hook for hook in Hook if self._overrides(METHODS[hook]))

    @property
    def synchronizes(self) -> bool:
        """Return whether this plugin overrides ``synchronize``."""
        return self._overrides("synchronize")

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(Plugin, name)


METHODS: Mapping[Hook, str] = {
    Hook.PRE_RUN_POD_SANDBOX: "pre_run_pod_sandbox",
    Hook.POST_STOP_POD_SANDBOX: "post_stop_pod_sandbox",
    Hook.PRE_CREATE_CONTAINER: "pre_create_container",
    Hook.PRE_START_CONTAINER: "pre_start_container",
    Hook.POST_START_CONTAINER: "post_start_container",
    Hook.POST_STOP_CONTAINER: "post_stop_container",
    Hook.PRE_UPDATE_CONTAINER_RESOURCES: "pre_update_container_resources",
}
"""The method of each hook."""
