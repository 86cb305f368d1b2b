"""The seven hook points, and the request and response message of each."""

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

HookRequest: TypeAlias = PodSandboxHookRequest | ContainerResourceHookRequest
HookResponse: TypeAlias = PodSandboxHookResponse | ContainerResourceHookResponse
M = TypeVar("M", bound=Message)


class Hook(enum.StrEnum):
    """A hook point, by its name in a plugin file."""

    PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
    POST_STOP_POD_SANDBOX = "PostStopPodSandbox"
    PRE_CREATE_CONTAINER = "PreCreateContainer"
    PRE_START_CONTAINER = "PreStartContainer"
    POST_START_CONTAINER = "PostStartContainer"
    POST_STOP_CONTAINER = "PostStopContainer"
    PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"

    @property
    def path(self) -> str:
        """Return the ``:path`` of the plugin's method."""
        return f"/{SERVICE}/{self.value}Hook"

    @property
    def is_post(self) -> bool:
        """Return whether plugins are called after the runtime, so that they cannot change the request."""
        return self.startswith("Post")

    @property
    def is_of_pod(self) -> bool:
        """Return whether the hook concerns a pod, not one of its containers."""
        return self.endswith("PodSandbox")


def decode_request(hook: Hook, data: bytes) -> HookRequest:
    """Return a hook's request message; raise INVALID ``hook-message`` if it cannot be decoded."""
    if hook.is_of_pod:
        return _decode(PodSandboxHookRequest, hook, data)
    return _decode(ContainerResourceHookRequest, hook, data)


def decode_response(hook: Hook, data: bytes) -> HookResponse:
    """Return a hook's response message; raise INVALID ``hook-message`` if it cannot be decoded."""
    if hook.is_of_pod:
        return _decode(PodSandboxHookResponse, hook, data)
    return _decode(ContainerResourceHookResponse, hook, data)


def _decode(kind: type[M], hook: Hook, data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise invalid("hook-message", f"{len(data)} bytes for hook {hook} are not a {kind.DESCRIPTOR.name}") from error
