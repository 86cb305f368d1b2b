"""Messages of the hook protocol from and to the kit's structs, and one call of a plugin by its bytes. Pure."""

from governor.sdk.hooks.plugin import (
    METHODS,
    ContainerChanges,
    ContainerRequest,
    Plugin,
    PodChanges,
    PodRequest,
    PodState,
)
from governor.wire.hooks.encoding import container_of, pod_of, pod_of_container, resources_message
from governor.wire.hooks.hooks_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from governor.wire.hooks.points import Hook, HookRequest, HookResponse, decode_request
from governor.wire.hooks.synchronization_pb2 import SynchronizeRequest, SynchronizeResponse


def handle(plugin: Plugin, hook: Hook, message: bytes) -> bytes:
    """Call a plugin with an encoded request and return its encoded response; what it raises passes."""
    request = request_of(decode_request(hook, message))
    return response_of(hook, getattr(plugin, METHODS[hook])(request)).SerializeToString()


def handle_synchronize(plugin: Plugin, message: bytes) -> bytes:
    """Send a plugin the encoded state of the node."""
    found = SynchronizeRequest.FromString(message)
    plugin.synchronize(
        [PodState(each.sandbox_id, pod_of(each.pod), tuple(map(container_of, each.containers))) for each in found.pods]
    )
    return SynchronizeResponse().SerializeToString()


def request_of(message: HookRequest) -> PodRequest | ContainerRequest:
    """Return a request as a struct."""
    match message:
        case PodSandboxHookRequest():
            return PodRequest(pod_of(message))
        case ContainerResourceHookRequest():
            return ContainerRequest(pod_of_container(message), container_of(message), dict(message.container_envs))


def response_of(hook: Hook, changes: PodChanges | ContainerChanges | None) -> HookResponse:
    """Return a response as a message."""
    match changes:
        case PodChanges():
            return PodSandboxHookResponse(
                labels=changes.labels,
                annotations=changes.annotations,
                cgroup_parent=changes.cgroup_parent,
                resources=resources_message(changes.resources),
            )
        case ContainerChanges():
            return ContainerResourceHookResponse(
                container_annotations=changes.annotations,
                container_resources=resources_message(changes.resources),
                container_envs=changes.environment,
                pod_cgroup_parent=changes.pod_cgroup_parent,
            )
        case None:
            return PodSandboxHookResponse() if hook.is_of_pod else ContainerResourceHookResponse()
