"""What is remembered of sandboxes and containers, so that plugins learn more than the id which most calls carry.

Records hold what the runtime was finally told, with all that plugins changed. Where they are kept, and how they are
rebuilt when the proxy starts, is not decided here.
"""

import copy
from typing import Protocol

import msgspec

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.environment import show
from governor.runtimeproxy.hooks.resources import overlay
from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest, PodSandboxHookRequest, PodSandboxMetadata


class Sandbox(msgspec.Struct, frozen=True):
    """A pod as plugins are told about it. Do not change the message."""

    id: str
    pod: PodSandboxHookRequest


class Container(msgspec.Struct, frozen=True):
    """A container by the request that made it, as bytes: most are never asked for, and messages are much larger."""

    id: str
    sandbox_id: str
    request: bytes

    @property
    def creation(self) -> cri_pb2.CreateContainerRequest:
        """The request that made it."""
        return cri_pb2.CreateContainerRequest.FromString(self.request)

    @property
    def container(self) -> ContainerResourceHookRequest:
        """As plugins are told about it, without its pod."""
        return container_of(self.creation, self.id)


class Known(Protocol):
    """Whoever remembers records."""

    def sandbox(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox of this id, if it is known."""

    def container(self, container_id: str) -> Container | None:
        """The container of this id, if it is known."""


def pod_of(config: cri_pb2.PodSandboxConfig, runtime_handler: str = "") -> PodSandboxHookRequest:
    """A pod as its configuration describes it; what is not set there stays unset."""
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
    """A container as its configuration describes it, without its pod."""
    config = request.config
    container = ContainerResourceHookRequest(
        container_annotations=config.annotations, pod_cgroup_parent=request.sandbox_config.linux.cgroup_parent
    )
    show(config.envs, container.container_envs)
    meta = container.container_meta
    meta.name, meta.attempt, meta.id = config.metadata.name, config.metadata.attempt, container_id
    meta.SetInParent()
    if config.linux.HasField("resources"):
        overlay(config.linux.resources, container.container_resources)
    return container


def add_pod(container: ContainerResourceHookRequest, pod: PodSandboxHookRequest) -> ContainerResourceHookRequest:
    """Add its pod to a container; what the container says already is not overwritten."""
    container.pod_labels.MergeFrom(pod.labels)
    container.pod_annotations.MergeFrom(pod.annotations)
    container.pod_cgroup_parent = container.pod_cgroup_parent or pod.cgroup_parent
    if pod.HasField("pod_meta"):
        container.pod_meta.CopyFrom(pod.pod_meta)
    if pod.HasField("resources"):
        container.pod_resources.CopyFrom(pod.resources)
    return container


def started_sandbox(request: cri_pb2.RunPodSandboxRequest, sandbox_id: str) -> Sandbox:
    """What to remember when the runtime has run a sandbox."""
    return Sandbox(sandbox_id, pod_of(request.config, request.runtime_handler))


def created_container(request: cri_pb2.CreateContainerRequest, container_id: str) -> Container:
    """What to remember when the runtime has created a container."""
    return Container(container_id, request.pod_sandbox_id, request.SerializeToString())


def updated_container(container: Container, request: cri_pb2.UpdateContainerResourcesRequest) -> Container:
    """What to remember when the runtime has updated a container: an update changes only what it specifies."""
    creation = container.creation
    creation.config.annotations.update(request.annotations)
    if request.HasField("linux"):
        overlay(request.linux, creation.config.linux.resources)
    return created_container(creation, container.id)


def updated_sandbox(sandbox: Sandbox, request: cri_pb2.UpdatePodSandboxResourcesRequest) -> Sandbox:
    """What to remember when the runtime has updated a sandbox."""
    pod = copy.deepcopy(sandbox.pod)
    if request.HasField("overhead"):
        overlay(request.overhead, pod.overhead)
    if request.HasField("resources"):
        overlay(request.resources, pod.resources)
    return Sandbox(sandbox.id, pod)
