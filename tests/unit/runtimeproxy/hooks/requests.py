"""CRI requests as kubelet sends them, and responses as plugins return them."""

from typing import Any

from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.cri.messages import pod_of
from governor.runtimeproxy.hooks.answers import Answer
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.merge import MergedRequest
from governor.runtimeproxy.store.records import ContainerRecord, Sandbox, new_container, with_id
from governor.wire.hooks import hooks_pb2 as hooks
from tests.unit.runtimeproxy.hooks.strategies import FixedRecords, answer, begun, echo, result, sent

# As kubelet describes a burstable container with pinned CPUs.
KUBELET: dict[str, Any] = {
    "cpu_period": 100000,
    "cpu_quota": 50000,
    "cpu_shares": 512,
    "memory_limit_in_bytes": 1 << 30,
    "oom_score_adj": 900,
    "cpuset_cpus": "0-3",
    "hugepage_limits": [{"page_size": "2Mi", "limit": 0}, {"page_size": "1Gi", "limit": 7}],
    "unified": {"memory.oom.group": "1"},
}
POD = cri.PodSandboxConfig(
    metadata={"name": "web", "uid": "u1", "namespace": "shop", "attempt": 1},
    labels={"app": "web"},
    annotations={"note": "x"},
    linux={"cgroup_parent": "/kubepods/pod1"},
)


def creation(resources: dict[str, Any] | None = None, envs: list[tuple[str, bytes]] | None = None) -> MergedRequest:
    request = cri.CreateContainerRequest(pod_sandbox_id="s", sandbox_config=POD)
    request.config.metadata.name = "app"
    if resources is not None:
        request.config.linux.resources.CopyFrom(cri.LinuxContainerResources(**resources))
    for key, value in envs or []:
        request.config.envs.append(cri.KeyValue(key=key, value=value).SerializeToString())
    return begun(Call.CREATE_CONTAINER, request, FixedRecords())


def sent_container(merged: MergedRequest) -> hooks.ContainerResourceHookRequest:
    """Return the hook request about a container that the next plugin gets."""
    message = sent(merged)
    assert isinstance(message, hooks.ContainerResourceHookRequest)
    return message


def container_answer(**fields: Any) -> Answer:
    return answer(hooks.ContainerResourceHookResponse(**fields))


def resources_response(**resources: Any) -> Answer:
    return container_answer(container_resources=hooks.LinuxContainerResources(**resources))


def echoed(merged: MergedRequest, **resources: Any) -> Answer:
    """Return the response of a plugin that echoes its request with some resources set."""
    message = echo(sent(merged))
    assert isinstance(message, hooks.ContainerResourceHookResponse)
    for name, value in resources.items():
        setattr(message.container_resources, name, value)
    return answer(message)


def environment_response(**variables: str) -> Answer:
    return container_answer(container_envs=variables)


def resources_of(merged: MergedRequest) -> cri.LinuxContainerResources:
    request = result(merged)
    assert isinstance(request, cri.CreateContainerRequest)
    return request.config.linux.resources


def variables_of(merged: MergedRequest) -> list[tuple[str, bytes]]:
    request = result(merged)
    assert isinstance(request, cri.CreateContainerRequest)
    variables = map(cri.KeyValue.FromString, request.config.envs)
    return [(each.key, each.value) for each in variables]


def change_texts(merged: MergedRequest) -> list[str]:
    return [str(change) for change in merged.changes]


VARIABLES = [("B", b"1"), ("A", b"2"), ("B", b"3"), ("KEY", b"\xff\xfe"), ("C", b"")]


def recorded_container() -> FixedRecords:
    container = with_id(record(creation(KUBELET, VARIABLES), with_environment=True), "c")
    return FixedRecords({"s": Sandbox("s", pod_of(POD, "runc"))}, {"c": container})


def record(merged: MergedRequest, *, with_environment: bool = False) -> ContainerRecord:
    """Return the record of a container that is created."""
    question = merged.question
    assert question.container is not None
    return new_container("s", question.container, question.environment, with_environment=with_environment)


def update(**fields: Any) -> MergedRequest:
    request = cri.UpdateContainerResourcesRequest(container_id="c", **fields)
    return begun(Call.UPDATE_CONTAINER_RESOURCES, request, recorded_container())
