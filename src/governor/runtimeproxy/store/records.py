"""Records of sandboxes and containers: most calls carry only an id, plugins need the rest.

A record holds what the runtime received, including plugins' changes. Pure: ``cache`` keeps the records.
"""

import copy
import functools
from typing import Final, Protocol

import msgspec

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.environment import Environment
from governor.runtimeproxy.hooks.resources import overlay
from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest, PodSandboxHookRequest, PodSandboxMetadata

_MAX_NAMES: Final = 64
_MAX_NAMES_BYTES: Final = 2048


class Sandbox(msgspec.Struct, frozen=True, dict=True):
    """A sandbox, as the hook request that describes its pod. The message must not be modified."""

    id: str
    pod: PodSandboxHookRequest

    @functools.cached_property
    def labels(self) -> dict[str, str]:
        """Return the pod's labels."""
        return dict(self.pod.labels)

    @functools.cached_property
    def annotations(self) -> dict[str, str]:
        """Return the pod's annotations."""
        return dict(self.pod.annotations)

    @functools.cached_property
    def part(self) -> bytes:
        """Return the part of a container's hook request that describes its pod, encoded."""
        pod = self.pod
        part = ContainerResourceHookRequest(
            pod_labels=pod.labels, pod_annotations=pod.annotations, pod_cgroup_parent=pod.cgroup_parent
        )
        if pod.HasField("pod_meta"):
            part.pod_meta.CopyFrom(pod.pod_meta)
        if pod.HasField("resources"):
            part.pod_resources.CopyFrom(pod.resources)
        return part.SerializeToString()


class Container(msgspec.Struct, frozen=True):
    """A container, as what later hooks need of it: decoded messages take several times the memory."""

    id: str
    sandbox_id: str
    name: str
    description: bytes
    """The encoded hook request that describes it, without its pod, id and variables."""
    variables: bytes = b""
    """Its encoded variables, if a plugin asks to remember them."""
    first_names: bytes = b""
    """The first names of its variables as lines, for ``explain``."""

    @property
    def variable_names(self) -> list[str]:
        """Return the first names of its variables, sorted."""
        return sorted(set(self.first_names.decode(errors="replace").splitlines()))

    @property
    def message(self) -> ContainerResourceHookRequest:
        """Return the hook request that describes it, without its pod and variables."""
        message = ContainerResourceHookRequest.FromString(self.description)
        message.container_meta.id = self.id
        return message


class Records(Protocol):
    """Lookup of records by id."""

    def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """Return the sandbox with this id, or None."""

    def container(self, container_id: str) -> Container | None:
        """Return the container with this id, or None."""


def pod_of(config: cri_pb2.PodSandboxConfig, runtime_handler: str = "") -> PodSandboxHookRequest:
    """Return the hook request that describes a pod; fields unset in its configuration stay unset."""
    linux = config.linux
    pod = PodSandboxHookRequest(
        runtime_handler=runtime_handler,
        labels=config.labels,
        annotations=config.annotations,
        cgroup_parent=linux.cgroup_parent,
    )
    if config.HasField("metadata"):
        meta = config.metadata
        identity = PodSandboxMetadata(name=meta.name, uid=meta.uid, namespace=meta.namespace, attempt=meta.attempt)
        pod.pod_meta.CopyFrom(identity)
    if linux.HasField("overhead"):
        overlay(linux.overhead, pod.overhead)
    if linux.HasField("resources"):
        overlay(linux.resources, pod.resources)
    return pod


def container_of(request: cri_pb2.CreateContainerRequest) -> ContainerResourceHookRequest:
    """Return the hook request that describes a container, without its pod and variables."""
    config = request.config
    container = ContainerResourceHookRequest(
        container_annotations=config.annotations, pod_cgroup_parent=request.sandbox_config.linux.cgroup_parent
    )
    meta = container.container_meta
    meta.name, meta.attempt = config.metadata.name, config.metadata.attempt
    meta.SetInParent()
    if config.linux.HasField("resources"):
        overlay(config.linux.resources, container.container_resources)
    return container


def started_sandbox(request: cri_pb2.RunPodSandboxRequest, sandbox_id: str) -> Sandbox:
    """Return the record of a sandbox that the runtime has started."""
    return Sandbox(sandbox_id, pod_of(request.config, request.runtime_handler))


def new_container(
    request: cri_pb2.CreateContainerRequest,
    message: ContainerResourceHookRequest | None = None,
    *,
    with_environment: bool = False,
) -> Container:
    """Return the record of a container that is created, before it has an id; ``message`` describes it, if given."""
    environment = Environment(list(request.config.envs))
    return Container(
        id="",
        sandbox_id=request.pod_sandbox_id,
        name=request.config.metadata.name,
        description=(message or container_of(request)).SerializeToString(),
        variables=environment.encoded() if with_environment else b"",
        first_names=environment.first_names(_MAX_NAMES, _MAX_NAMES_BYTES),
    )


def with_id(container: Container, container_id: str) -> Container:
    """Return the record of a container that the runtime has created."""
    return msgspec.structs.replace(container, id=container_id)


def updated_container(container: Container, request: cri_pb2.UpdateContainerResourcesRequest) -> Container:
    """Return the record after an update, which changes only what it specifies."""
    message = container.message
    message.container_annotations.update(request.annotations)
    if request.HasField("linux"):
        overlay(request.linux, message.container_resources)
    return described(container, message)


def described(container: Container, message: ContainerResourceHookRequest) -> Container:
    """Return the record with another description."""
    message.container_meta.id = ""
    return msgspec.structs.replace(container, description=message.SerializeToString())


def updated_sandbox(sandbox: Sandbox, request: cri_pb2.UpdatePodSandboxResourcesRequest) -> Sandbox:
    """Return the record after an update, which changes only what it specifies."""
    pod = copy.deepcopy(sandbox.pod)
    if request.HasField("overhead"):
        overlay(request.overhead, pod.overhead)
    if request.HasField("resources"):
        overlay(request.resources, pod.resources)
    return Sandbox(sandbox.id, pod)
