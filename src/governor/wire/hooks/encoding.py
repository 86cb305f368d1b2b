"""Pods, containers and resources from and to messages of the hook protocol. Pure."""

from governor.wire.hooks.hooks_pb2 import (
    ContainerMetadata,
    ContainerResourceHookRequest,
    HugepageLimit,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxMetadata,
)
from governor.wire.hooks.workload import NO_IDENTITY, Container, Pod, PodIdentity, Resources


def pod_message(pod: Pod) -> PodSandboxHookRequest:
    """Return the hook request that describes a pod; what is not specified stays unset."""
    return PodSandboxHookRequest(
        pod_meta=metadata_message(pod),
        runtime_handler=pod.runtime_handler,
        labels=pod.labels,
        annotations=pod.annotations,
        cgroup_parent=pod.cgroup_parent,
        overhead=resources_message(pod.overhead),
        resources=resources_message(pod.resources),
    )


def container_message(container: Container) -> ContainerResourceHookRequest:
    """Return the part of a hook request that describes a container, without its pod and variables."""
    message = ContainerResourceHookRequest(
        container_meta=ContainerMetadata(name=container.name, attempt=container.attempt, id=container.id),
        container_resources=resources_message(container.resources),
        pod_cgroup_parent=container.pod_cgroup_parent,
    )
    # One by one takes half the time of the constructor.
    entries = message.container_annotations
    for key, value in container.annotations.items():
        entries[key] = value
    return message


def metadata_message(pod: Pod) -> PodSandboxMetadata | None:
    """Return which pod it is, if that is known."""
    identity = pod.identity
    if identity is NO_IDENTITY:
        return None
    return PodSandboxMetadata(
        name=identity.name, uid=identity.uid, namespace=identity.namespace, attempt=identity.attempt
    )


def resources_message(resources: Resources | None) -> LinuxContainerResources | None:
    """Return resources as a message."""
    if resources is None:
        return None
    message = LinuxContainerResources(
        cpu_period=resources.cpu_period,
        cpu_quota=resources.cpu_quota,
        cpu_shares=resources.cpu_shares,
        memory_limit_in_bytes=resources.memory_limit_in_bytes,
        oom_score_adj=resources.oom_score_adj,
        memory_swap_limit_in_bytes=resources.memory_swap_limit_in_bytes,
        cpuset_cpus=resources.cpuset_cpus,
        cpuset_mems=resources.cpuset_mems,
    )
    if resources.hugepage_limits:
        limits = resources.hugepage_limits.items()
        message.hugepage_limits.extend(HugepageLimit(page_size=size, limit=limit) for size, limit in limits)
    if resources.unified:
        message.unified.update(resources.unified)
    return message


def resources_of(linux: LinuxContainerResources) -> Resources:
    """Return the resources in a message; CRI's has the same fields."""
    hugepages, unified = linux.hugepage_limits, linux.unified
    return Resources(
        linux.cpu_period,
        linux.cpu_quota,
        linux.cpu_shares,
        linux.memory_limit_in_bytes,
        linux.oom_score_adj,
        linux.memory_swap_limit_in_bytes,
        linux.cpuset_cpus,
        linux.cpuset_mems,
        {each.page_size: each.limit for each in hugepages} if hugepages else {},
        dict(unified) if unified else {},
    )


def pod_of(message: PodSandboxHookRequest) -> Pod:
    """Return the pod that a hook request describes."""
    return Pod(
        identity_of(message.pod_meta) if message.HasField("pod_meta") else NO_IDENTITY,
        dict(message.labels),
        dict(message.annotations),
        message.cgroup_parent,
        message.runtime_handler,
        resources_of(message.resources) if message.HasField("resources") else None,
        resources_of(message.overhead) if message.HasField("overhead") else None,
    )


def pod_of_container(message: ContainerResourceHookRequest) -> Pod:
    """Return the pod of the container that a hook request describes."""
    return Pod(
        identity_of(message.pod_meta) if message.HasField("pod_meta") else NO_IDENTITY,
        dict(message.pod_labels),
        dict(message.pod_annotations),
        message.pod_cgroup_parent,
        "",
        resources_of(message.pod_resources) if message.HasField("pod_resources") else None,
    )


def container_of(message: ContainerResourceHookRequest) -> Container:
    """Return the container that a hook request describes."""
    metadata = message.container_meta
    has_resources = message.HasField("container_resources")
    return Container(
        metadata.id,
        metadata.name,
        metadata.attempt,
        dict(message.container_annotations),
        resources_of(message.container_resources) if has_resources else None,
        message.pod_cgroup_parent,
    )


def identity_of(metadata: PodSandboxMetadata) -> PodIdentity:
    """Return which pod it is."""
    return PodIdentity(metadata.name, metadata.uid, metadata.namespace, metadata.attempt)
