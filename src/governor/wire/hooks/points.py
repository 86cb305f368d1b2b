"""The seven hooks by name, and the messages that each of them takes and answers."""

import enum
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from governor.errors import invalid
from governor.wire.hooks.hooks_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)

SERVICE: Final = "runtime.v1alpha1.RuntimeHookService"

Request: TypeAlias = PodSandboxHookRequest | ContainerResourceHookRequest
Response: TypeAlias = PodSandboxHookResponse | ContainerResourceHookResponse
M = TypeVar("M", bound=Message)


class Hook(enum.StrEnum):
    """A moment in the life of a pod at which plugins are asked, under its name in a plugin's file."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    POST_STOP_CONTAINER = "PostStopContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"

    @property
    def path(self) -> str:
        """The ``:path`` under which a plugin serves it."""
        return f"/{SERVICE}/{self.value}Hook"

    @property
    def is_post(self) -> bool:
        """Whether plugins are told after the runtime has done it, so that they cannot change it any more."""
        return self.value.startswith("Post")

    @property
    def is_of_pod(self) -> bool:
        """Whether it concerns a whole pod and not one of its containers."""
        return self.value.endswith("PodSandbox")


def decode_request(hook: Hook, data: bytes) -> Request:
    """What a plugin is asked; INVALID ``hook-message`` if it is none."""
    if hook.is_of_pod:
        return _decode(PodSandboxHookRequest, hook, data)
    return _decode(ContainerResourceHookRequest, hook, data)


def decode_response(hook: Hook, data: bytes) -> Response:
    """What a plugin answered; INVALID ``hook-message`` if it is none."""
    if hook.is_of_pod:
        return _decode(PodSandboxHookResponse, hook, data)
    return _decode(ContainerResourceHookResponse, hook, data)


def _decode(kind: type[M], hook: Hook, data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise invalid("hook-message", f"{len(data)} bytes for hook {hook} are no {kind.DESCRIPTOR.name}") from error
