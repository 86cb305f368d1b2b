"""Which pod and container a call is about: from its message, and from what is known of the ids in it. Pure."""

from typing import Final

from google.protobuf.message import DecodeError

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.calls import CriRequest
from governor.runtimeproxy.ops.control import Subject
from governor.runtimeproxy.store.records import Known

_OF_SANDBOX: Final = frozenset(
    {
        "StopPodSandbox",
        "RemovePodSandbox",
        "PodSandboxStatus",
        "PodSandboxStats",
        "UpdatePodSandboxResources",
        "PortForward",
    }
)
_OF_CONTAINER: Final = frozenset(
    {
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "UpdateContainerResources",
        "ContainerStatus",
        "ContainerStats",
        "ReopenContainerLog",
        "CheckpointContainer",
        "Exec",
        "ExecSync",
        "Attach",
    }
)
"""CRI puts the id that a request is about into its field 1, whatever else is in it."""


def subject_in(method: str, message: bytes, known: Known) -> Subject:
    """What a request is about; nothing if it is about no pod, or cannot be read."""
    try:
        request = _request(method, message)
    except DecodeError:
        return Subject()
    return Subject() if request is None else subject_of(request, known)


def _request(method: str, message: bytes) -> CriRequest | None:
    if method == "RunPodSandbox":
        return cri_pb2.RunPodSandboxRequest.FromString(message)
    if method == "CreateContainer":
        return cri_pb2.CreateContainerRequest.FromString(message)
    if method in _OF_SANDBOX:
        return cri_pb2.StopPodSandboxRequest.FromString(message)
    if method in _OF_CONTAINER:
        return cri_pb2.StopContainerRequest.FromString(message)
    return None


def subject_of(request: CriRequest, known: Known) -> Subject:
    """What a request is about."""
    match request:
        case cri_pb2.RunPodSandboxRequest():
            return _of_config(request.config)
        case cri_pb2.CreateContainerRequest():
            return _of_new_container(request, known)
        case (
            cri_pb2.StopPodSandboxRequest()
            | cri_pb2.RemovePodSandboxRequest()
            | cri_pb2.UpdatePodSandboxResourcesRequest()
        ):
            return _of_sandbox(request.pod_sandbox_id, known)
        case _:
            return _of_container(request.container_id, known)


def _of_config(config: cri_pb2.PodSandboxConfig, sandbox_id: str = "", container: str = "") -> Subject:
    meta = config.metadata
    return Subject(meta.namespace, meta.name, meta.uid, sandbox_id, container)


def _of_new_container(request: cri_pb2.CreateContainerRequest, known: Known) -> Subject:
    name = request.config.metadata.name
    if request.HasField("sandbox_config"):
        return _of_config(request.sandbox_config, request.pod_sandbox_id, name)
    return _of_sandbox(request.pod_sandbox_id, known, name)


def _of_sandbox(sandbox_id: str, known: Known, container: str = "", container_id: str = "") -> Subject:
    sandbox = known.sandbox(sandbox_id)
    if sandbox is None:
        return Subject(sandbox_id=sandbox_id, container=container, container_id=container_id)
    meta = sandbox.pod.pod_meta
    return Subject(meta.namespace, meta.name, meta.uid, sandbox_id, container, container_id)


def _of_container(container_id: str, known: Known) -> Subject:
    container = known.container(container_id)
    if container is None:
        return Subject(container_id=container_id)
    return _of_sandbox(container.sandbox_id, known, container.creation.config.metadata.name, container_id)
