"""The pod and container that any call of CRI concerns, for those that are not held."""

from typing import Final

from google.protobuf.message import DecodeError

from governor.runtimeproxy.cri.messages import KINDS, request_of
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.subject import subject_of
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
    call = _similar_call(method)
    if call is None:
        return Subject()
    try:
        return subject_of(request_of(call, KINDS[call].FromString(message)), records)
    except DecodeError:
        return Subject()


def _similar_call(method: str) -> Call | None:
    """Return a call whose request has the id at the same place."""
    if method in (Call.RUN_POD_SANDBOX, Call.CREATE_CONTAINER):
        return Call(method)
    if method in _SANDBOX_METHODS:
        return Call.STOP_POD_SANDBOX
    return Call.STOP_CONTAINER if method in _CONTAINER_METHODS else None
