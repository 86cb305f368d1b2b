"""The pod and container that a call concerns, from its message and the records of the ids in it. Pure."""

from typing import Final

from google.protobuf.message import DecodeError

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.calls import CriRequest
from governor.runtimeproxy.ops.control import Subject
from governor.runtimeproxy.store.records import Records

_SANDBOX_METHODS: Final = frozenset(
    {
        "StopPodSandbox",
        "RemovePodSandbox",
        "PodSandboxStatus",
        "PodSandboxStats",
        "UpdatePodSandboxResources",
        "PortForward",
    }
)
_CONTAINER_METHODS: Final = frozenset(
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
"""In all of these requests field 1 is the id."""


def decode_subject(method: str, message: bytes, records: Records) -> Subject:
    """Return the subject of an encoded request; empty if it concerns no pod or cannot be decoded."""
    try:
        request = _request(method, message)
    except DecodeError:
        return Subject()
    return Subject() if request is None else subject_of(request, records)


def _request(method: str, message: bytes) -> CriRequest | None:
    if method == "RunPodSandbox":
        return cri_pb2.RunPodSandboxRequest.FromString(message)
    if method == "CreateContainer":
        return cri_pb2.CreateContainerRequest.FromString(message)
    if method in _SANDBOX_METHODS:
        return cri_pb2.StopPodSandboxRequest.FromString(message)
    if method in _CONTAINER_METHODS:
        return cri_pb2.StopContainerRequest.FromString(message)
    return None


def subject_of(request: CriRequest, records: Records) -> Subject:
    """Return the subject of a request."""
    match request:
        case cri_pb2.RunPodSandboxRequest():
            return _of_config(request.config)
        case cri_pb2.CreateContainerRequest():
            return _of_new_container(request, records)
        case (
            cri_pb2.StopPodSandboxRequest()
            | cri_pb2.RemovePodSandboxRequest()
            | cri_pb2.UpdatePodSandboxResourcesRequest()
        ):
            return _of_sandbox(request.pod_sandbox_id, records)
        case _:
            return _of_container(request.container_id, records)


def _of_config(config: cri_pb2.PodSandboxConfig, sandbox_id: str = "", container: str = "") -> Subject:
    meta = config.metadata
    return Subject(meta.namespace, meta.name, meta.uid, sandbox_id, container)


def _of_new_container(request: cri_pb2.CreateContainerRequest, records: Records) -> Subject:
    name = request.config.metadata.name
    if request.HasField("sandbox_config"):
        return _of_config(request.sandbox_config, request.pod_sandbox_id, name)
    return _of_sandbox(request.pod_sandbox_id, records, name)


def _of_sandbox(sandbox_id: str, records: Records, container: str = "", container_id: str = "") -> Subject:
    sandbox = records.sandbox(sandbox_id)
    if sandbox is None:
        return Subject(sandbox_id=sandbox_id, container=container, container_id=container_id)
    meta = sandbox.pod.pod_meta
    return Subject(meta.namespace, meta.name, meta.uid, sandbox_id, container, container_id)


def _of_container(container_id: str, records: Records) -> Subject:
    container = records.container(container_id)
    if container is None:
        return Subject(container_id=container_id)
    return _of_sandbox(container.sandbox_id, records, container.name, container_id)
