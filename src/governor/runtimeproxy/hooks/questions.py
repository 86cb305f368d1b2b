"""What plugins are asked about a call, and what they answer, in the encodings of the hook protocol. Pure."""

import copy
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from governor.errors import GovernorError, Kind, invalid
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.calls import CriRequest
from governor.runtimeproxy.hooks.changes import Change
from governor.runtimeproxy.hooks.environment import Environment
from governor.runtimeproxy.hooks.fields import set_field
from governor.runtimeproxy.store.records import Container, Records, Sandbox, container_of, pod_of, updated_container
from governor.wire.hooks.hooks_pb2 import PodSandboxHookRequest
from governor.wire.hooks.points import Hook, HookRequest, HookResponse, decode_response

ENVIRONMENT: Final = "container_envs"
_NO_VARIABLES: Final = Environment()


class Question(msgspec.Struct, frozen=True):
    """A hook request in parts. Its messages must not be modified."""

    message: HookRequest
    """A pod; or a container without its pod and its variables, except for the pod's cgroup parent."""
    pod: Sandbox
    environment: Environment = _NO_VARIABLES
    """The variables of a container that is created."""
    remembered: bytes = b""
    """The encoded variables of a container that was created before, if they are kept."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the pod's labels."""
        return self.pod.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the pod's annotations."""
        return self.pod.annotations

    def encoded(self, *, remembers_environment: bool = False) -> bytes:
        """Return the hook request, with remembered variables for a plugin that asks for them."""
        message = self.message.SerializeToString()
        if isinstance(self.message, PodSandboxHookRequest):
            return message
        variables = self.environment.encoded() if self.environment.entries else b""
        # The last occurrence of a field counts, so the container's cgroup parent follows its pod's.
        return b"".join((self.pod.part, message, variables, self.remembered if remembers_environment else b""))

    @property
    def sent_environment(self) -> Environment:
        """Return the variables that a plugin may have been sent."""
        if not self.remembered:
            return self.environment
        return Environment(list(cri_pb2.RequestVariables.FromString(self.remembered).container_envs))

    def with_changes(self, changes: Sequence[Change]) -> "Question":
        """Return the question for the next plugin, which sees these changes."""
        if not changes:
            return self
        message = copy.deepcopy(self.message)
        variables = [(each.path[1], each.new) for each in changes if each.path[0] == ENVIRONMENT]
        for change in changes:
            if change.path[0] != ENVIRONMENT:
                set_field(message, change.path, change.new)
        environment = self.environment.with_changes(variables) if variables else self.environment
        return Question(message, self.pod, environment, self.remembered)


class Answer(msgspec.Struct, frozen=True):
    """A hook response in parts."""

    message: HookResponse
    """The response without variables."""
    variables: Sequence[bytes] = ()
    """Encoded variables."""


def decode_answer(hook: Hook, data: bytes) -> Answer:
    """Return a plugin's response; raise INVALID ``hook-message`` if it cannot be decoded."""
    if hook.is_of_pod:
        return Answer(decode_response(hook, data))
    try:
        parts = cri_pb2.ResponseVariables.FromString(data)
    except DecodeError as error:
        raise invalid("hook-message", f"{len(data)} bytes for hook {hook} are not a hook response") from error
    variables = list(parts.container_envs)
    if variables:
        parts.ClearField(ENVIRONMENT)
        data = parts.SerializeToString()
    return Answer(decode_response(hook, data), variables)


def question_for(request: CriRequest, records: Records) -> Question:
    """Return the question about a call; raise NOT_FOUND if its sandbox or container is unknown."""
    match request:
        case cri_pb2.RunPodSandboxRequest():
            pod = pod_of(request.config, request.runtime_handler)
            return Question(pod, Sandbox("", pod))
        case cri_pb2.StopPodSandboxRequest():
            sandbox = _sandbox(request.pod_sandbox_id, records)
            return Question(sandbox.pod, sandbox)
        case cri_pb2.CreateContainerRequest():
            return _new_container(request, _sandbox_of_new_container(request, records))
        case cri_pb2.UpdateContainerResourcesRequest():
            return _known_container(updated_container(_container(request.container_id, records), request), records)
        case cri_pb2.StartContainerRequest() | cri_pb2.StopContainerRequest():
            return _known_container(_container(request.container_id, records), records)
        case _:
            raise ValueError(f"{type(request).__name__} has no hook")


def _new_container(request: cri_pb2.CreateContainerRequest, sandbox: Sandbox) -> Question:
    message = container_of(request)
    message.pod_cgroup_parent = message.pod_cgroup_parent or sandbox.pod.cgroup_parent
    return Question(message, sandbox, Environment(list(request.config.envs)))


def _known_container(container: Container, records: Records) -> Question:
    sandbox = _sandbox(container.sandbox_id, records)
    message = container.message
    message.pod_cgroup_parent = message.pod_cgroup_parent or sandbox.pod.cgroup_parent
    return Question(message, sandbox, remembered=container.variables)


def _sandbox(sandbox_id: str, records: Records) -> Sandbox:
    sandbox = records.sandbox(sandbox_id)
    if sandbox is None:
        raise _unknown("sandbox", sandbox_id)
    return sandbox


def _sandbox_of_new_container(request: cri_pb2.CreateContainerRequest, records: Records) -> Sandbox:
    """Return the recorded sandbox or, if it has no record, the one described in the request."""
    sandbox = records.sandbox(request.pod_sandbox_id)
    if sandbox is not None:
        return sandbox
    if request.HasField("sandbox_config"):
        return Sandbox(request.pod_sandbox_id, pod_of(request.sandbox_config))
    raise _unknown("sandbox", request.pod_sandbox_id)


def _container(container_id: str, records: Records) -> Container:
    container = records.container(container_id)
    if container is None:
        raise _unknown("container", container_id)
    return container


def _unknown(kind: str, name: str) -> GovernorError:
    message = f"{kind} {name!r} is unknown to the runtime proxy, so no plugin can be called for it"
    return GovernorError(Kind.NOT_FOUND, f"unknown-{kind}", message)
