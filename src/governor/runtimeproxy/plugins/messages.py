"""The messages of the hook protocol: encoding of questions, decoding of answers."""

from typing import Final

from google.protobuf.message import DecodeError

from governor.errors import invalid
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.cri.messages import resources_of
from governor.runtimeproxy.hooks.answers import Answer
from governor.runtimeproxy.hooks.calls import ENVIRONMENT
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.workload import NO_IDENTITY, Container, Pod, Resources
from governor.wire.hooks.hooks_pb2 import (
    ContainerMetadata,
    ContainerResourceHookRequest,
    HugepageLimit,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    PodSandboxMetadata,
)
from governor.wire.hooks.points import Hook, decode_response

_MAX_PODS: Final = 256


class QuestionEncoder:
    """Encodes questions; the part that describes the pod is the same for all of its containers."""

    def __init__(self) -> None:
        self._pods: dict[int, tuple[Pod, bytes]] = {}
        """By identity of the object; the oldest first."""

    def __len__(self) -> int:
        return len(self._pods)

    def encode(self, question: Question, *, remembers_environment: bool = False) -> bytes:
        """Return the hook request, with remembered variables for a plugin that asks for them."""
        if question.container is None:
            return pod_request(question.pod).SerializeToString()
        environment = question.environment
        variables = environment.encoded() if environment.entries else b""
        remembered = question.remembered if remembers_environment else b""
        # The last occurrence of a field counts, so the container's cgroup parent follows its pod's.
        return b"".join((self._pod_part(question.pod), _container_part(question.container), variables, remembered))

    def _pod_part(self, pod: Pod) -> bytes:
        known = self._pods.get(id(pod))
        if known is not None and known[0] is pod:
            return known[1]
        if len(self._pods) >= _MAX_PODS:
            del self._pods[next(iter(self._pods))]
        part = ContainerResourceHookRequest(
            pod_meta=_metadata(pod),
            pod_labels=pod.labels,
            pod_annotations=pod.annotations,
            pod_cgroup_parent=pod.cgroup_parent,
            pod_resources=_resources(pod.resources),
        ).SerializeToString()
        self._pods[id(pod)] = pod, part
        return part


def pod_request(pod: Pod) -> PodSandboxHookRequest:
    """Return the hook request that describes a pod; what is not specified stays unset."""
    return PodSandboxHookRequest(
        pod_meta=_metadata(pod),
        runtime_handler=pod.runtime_handler,
        labels=pod.labels,
        annotations=pod.annotations,
        cgroup_parent=pod.cgroup_parent,
        overhead=_resources(pod.overhead),
        resources=_resources(pod.resources),
    )


def _container_part(container: Container) -> bytes:
    return ContainerResourceHookRequest(
        container_meta=ContainerMetadata(name=container.name, attempt=container.attempt, id=container.id),
        container_annotations=container.annotations,
        container_resources=_resources(container.resources),
        pod_cgroup_parent=container.pod_cgroup_parent,
    ).SerializeToString()


def _metadata(pod: Pod) -> PodSandboxMetadata | None:
    identity = pod.identity
    if identity is NO_IDENTITY:
        return None
    return PodSandboxMetadata(
        name=identity.name, uid=identity.uid, namespace=identity.namespace, attempt=identity.attempt
    )


def _resources(resources: Resources | None) -> LinuxContainerResources | None:
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


def decode_answer(hook: Hook, data: bytes) -> Answer:
    """Return a plugin's answer; raise INVALID ``hook-message`` if it cannot be decoded."""
    variables: list[bytes] = []
    if not hook.is_of_pod:
        data, variables = _without_variables(hook, data)
    message = decode_response(hook, data)
    if isinstance(message, PodSandboxHookResponse):
        resources = resources_of(message.resources) if message.HasField("resources") else None
        return Answer(dict(message.labels), dict(message.annotations), message.cgroup_parent, resources)
    resources = resources_of(message.container_resources) if message.HasField("container_resources") else None
    return Answer({}, dict(message.container_annotations), message.pod_cgroup_parent, resources, variables)


def _without_variables(hook: Hook, data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the answer without its variables, and these as they are encoded: there may be many."""
    try:
        parts = cri_pb2.ResponseVariables.FromString(data)
    except DecodeError as error:
        raise invalid("hook-message", f"{len(data)} bytes for hook {hook} are not a hook response") from error
    variables = list(parts.container_envs)
    if not variables:
        return data, variables
    parts.ClearField(ENVIRONMENT)
    return parts.SerializeToString(), variables
