"""The messages of the hook protocol: encoding of questions, decoding of answers."""

from collections.abc import Callable, Iterable
from typing import Final

from google.protobuf.message import DecodeError

from governor.errors import invalid
from governor.runtimeproxy.cri.cri_pb2 import ResponseVariables
from governor.runtimeproxy.hooks.answers import Answer
from governor.runtimeproxy.hooks.calls import ENVIRONMENT
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.store.records import ContainerRecord, Sandbox
from governor.wire.hooks.encoding import (
    container_message,
    metadata_message,
    pod_message,
    resources_message,
    resources_of,
)
from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest, PodSandboxHookResponse
from governor.wire.hooks.points import Hook, decode_response
from governor.wire.hooks.synchronization_pb2 import PodState, SynchronizeRequest
from governor.wire.hooks.workload import Pod

_MAX_PODS: Final = 256
_VARIABLES_TAG: Final = bytes([ResponseVariables.CONTAINER_ENVS_FIELD_NUMBER << 3 | 2])
"""The byte that precedes each variable of an answer; most answers do not contain it."""


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
            return pod_message(question.pod).SerializeToString()
        environment = question.environment
        variables = environment.encoded() if environment.entries else b""
        remembered = question.remembered if remembers_environment else b""
        # The last occurrence of a field counts, so the container's cgroup parent follows its pod's.
        container = container_message(question.container).SerializeToString()
        return b"".join((self._pod_part(question.pod), container, variables, remembered))

    def _pod_part(self, pod: Pod) -> bytes:
        known = self._pods.get(id(pod))
        if known is not None and known[0] is pod:
            return known[1]
        if len(self._pods) >= _MAX_PODS:
            del self._pods[next(iter(self._pods))]
        part = ContainerResourceHookRequest(
            pod_meta=metadata_message(pod),
            pod_labels=pod.labels,
            pod_annotations=pod.annotations,
            pod_cgroup_parent=pod.cgroup_parent,
            pod_resources=resources_message(pod.resources),
        ).SerializeToString()
        self._pods[id(pod)] = pod, part
        return part


def state_request(sandboxes: Iterable[Sandbox], containers_of: Callable[[str], Iterable[ContainerRecord]]) -> bytes:
    """Return the encoded state of a node."""
    pods = [
        PodState(
            sandbox_id=each.id,
            pod=pod_message(each.pod),
            containers=[container_message(own.container) for own in containers_of(each.id)],
        )
        for each in sandboxes
    ]
    return SynchronizeRequest(pods=pods).SerializeToString()


def decode_answer(hook: Hook, data: bytes) -> Answer:
    """Return a plugin's answer; raise INVALID ``hook-message`` if it cannot be decoded."""
    variables: list[bytes] = []
    if not hook.is_of_pod and _VARIABLES_TAG in data:
        data, variables = _without_variables(hook, data)
    message = decode_response(hook, data)
    if isinstance(message, PodSandboxHookResponse):
        resources = resources_of(message.resources) if message.HasField("resources") else None
        return Answer(dict(message.labels), dict(message.annotations), message.cgroup_parent, resources)
    resources = resources_of(message.container_resources) if message.HasField("container_resources") else None
    entries = message.container_annotations
    return Answer({}, {key: entries[key] for key in entries}, message.pod_cgroup_parent, resources, variables)


def _without_variables(hook: Hook, data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the answer without its variables, and these as they are encoded: there may be many."""
    try:
        parts = ResponseVariables.FromString(data)
    except DecodeError as error:
        raise invalid("hook-message", f"{len(data)} bytes for hook {hook} are not a hook response") from error
    variables = list(parts.container_envs)
    if not variables:
        return data, variables
    parts.ClearField(ENVIRONMENT)
    return parts.SerializeToString(), variables
