"""Records of sandboxes and containers: most calls carry only an id, plugins need the rest.

A record holds what the runtime received, including plugins' changes. Pure: ``cache`` keeps the records.
"""

import copy
from typing import Protocol

import msgspec

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.environment import copy_variables
from governor.runtimeproxy.hooks.resources import overlay
from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest, PodSandboxHookRequest, PodSandboxMetadata


class Sandbox(msgspec.Struct, frozen=True):
    """A sandbox, as the hook request that describes its pod. The message must not be modified."""

    id: str
    pod: PodSandboxHookRequest


class Container(msgspec.Struct, frozen=True):
    """A container, as the encoded request that created it: decoded messages take several times the memory."""

    id: str
    sandbox_id: str
    request: bytes

    @property
    def creation(self) -> cri_pb2.CreateContainerRequest:
        """Return the request that created it."""
        return cri_pb2.CreateContainerRequest.FromString(self.request)

    @property
    def container(self) -> ContainerResourceHookRequest:
        """Return the hook request that describes it, without its pod."""
        return container_of(self.creation, self.id)


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


def container_of(request: cri_pb2.CreateContainerRequest, container_id: str = "") -> ContainerResourceHookRequest:
    """Return the hook request that describes a container, without its pod."""
    config = request.config
    container = ContainerResourceHookRequest(
        container_annotations=config.annotations, pod_cgroup_parent=request.sandbox_config.linux.cgroup_parent
    )
    copy_variables(config.envs, container.container_envs)
    meta = container.container_meta
    meta.name, meta.attempt, meta.id = config.metadata.name, config.metadata.attempt, container_id
    meta.SetInParent()
    if config.linux.HasField("resources"):
        overlay(config.linux.resources, container.container_resources)
    return container


def add_pod(container: ContainerResourceHookRequest, pod: PodSandboxHookRequest) -> ContainerResourceHookRequest:
    """Add the pod to a container's hook request; a cgroup parent that is set there is kept."""
    container.pod_labels.MergeFrom(pod.labels)
    container.pod_annotations.MergeFrom(pod.annotations)
    container.pod_cgroup_parent = container.pod_cgroup_parent or pod.cgroup_parent
    if pod.HasField("pod_meta"):
        container.pod_meta.CopyFrom(pod.pod_meta)
    if pod.HasField("resources"):
        container.pod_resources.CopyFrom(pod.resources)
    return container


def started_sandbox(request: cri_pb2.RunPodSandboxRequest, sandbox_id: str) -> Sandbox:
    """Return the record of a sandbox that the runtime has started."""
    return Sandbox(sandbox_id, pod_of(request.config, request.runtime_handler))


def created_container(request: cri_pb2.CreateContainerRequest, container_id: str) -> Container:
    """Return the record of a container that the runtime has created."""
    return Container(container_id, request.pod_sandbox_id, request.SerializeToString())


def updated_container(container: Container, request: cri_pb2.UpdateContainerResourcesRequest) -> Container:
    """Return the record after an update, which changes only what it specifies."""
    creation = container.creation
    creation.config.annotations.update(request.annotations)
    if request.HasField("linux"):
        overlay(request.linux, creation.config.linux.resources)
    return created_container(creation, container.id)


def updated_sandbox(sandbox: Sandbox, request: cri_pb2.UpdatePodSandboxResourcesRequest) -> Sandbox:
    """Return the record after an update, which changes only what it specifies."""
    pod = copy.deepcopy(sandbox.pod)
    if request.HasField("overhead"):
        overlay(request.overhead, pod.overhead)
    if request.HasField("resources"):
        overlay(request.resources, pod.resources)
    return Sandbox(sandbox.id, pod)
