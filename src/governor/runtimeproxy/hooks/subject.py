"""The pod and container that a request concerns, from the request and the records of the ids in it. Pure."""

from governor.runtimeproxy.hooks.requests import Request
from governor.runtimeproxy.ops.control import Subject
from governor.runtimeproxy.store.records import Records
from governor.wire.hooks.workload import Pod


def subject_of(request: Request, records: Records) -> Subject:
    """Return the subject of a request."""
    if request.pod is not None:
        return _of_pod(request.pod, request.sandbox_id)
    if request.container_id:
        return _of_container(request.container_id, records)
    name = request.container.name if request.container is not None else ""
    if request.describe_pod is not None and records.sandbox(request.sandbox_id) is None:
        return _of_pod(request.describe_pod(), request.sandbox_id, name)
    return _of_sandbox(request.sandbox_id, records, name)


def _of_pod(pod: Pod, sandbox_id: str, container: str = "", container_id: str = "") -> Subject:
    identity = pod.identity
    return Subject(identity.namespace, identity.name, identity.uid, sandbox_id, container, container_id)


def _of_sandbox(sandbox_id: str, records: Records, container: str = "", container_id: str = "") -> Subject:
    sandbox = records.sandbox(sandbox_id)
    if sandbox is None:
        return Subject(sandbox_id=sandbox_id, container=container, container_id=container_id)
    return _of_pod(sandbox.pod, sandbox_id, container, container_id)


def _of_container(container_id: str, records: Records) -> Subject:
    container = records.container(container_id)
    if container is None:
        return Subject(container_id=container_id)
    return _of_sandbox(container.sandbox_id, records, container.name, container_id)
