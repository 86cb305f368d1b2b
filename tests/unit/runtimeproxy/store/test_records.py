"""Records of successful calls."""

from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.store.records import (
    new_container,
    started_sandbox,
    updated_container,
    updated_sandbox,
    with_id,
)
from governor.wire.hooks import hooks_pb2 as hooks
from tests.unit.runtimeproxy.hooks.requests import KUBELET, POD, creation, environment_response, resources_response


def test_a_sandbox_is_recorded_under_the_id_from_the_runtime() -> None:
    sandbox = started_sandbox(cri.RunPodSandboxRequest(config=POD, runtime_handler="runc"), "s1")
    assert (sandbox.id, sandbox.pod.runtime_handler, sandbox.pod.pod_meta.uid) == ("s1", "runc", "u1")


def test_a_container_is_recorded_with_the_plugins_changes() -> None:
    end = creation(KUBELET).add("one", resources_response(cpu_shares=2)).add("two", environment_response(A="1"))
    request = end.result()
    assert isinstance(request, cri.CreateContainerRequest)
    container = with_id(new_container(request), "c1")
    assert (container.id, container.sandbox_id, container.message.container_meta.id) == ("c1", "s", "c1")
    assert container.message.container_resources.cpu_shares == 2
    assert (container.variables, container.variable_names) == (b"", ["A"])
    remembered = cri.RequestVariables.FromString(new_container(request, with_environment=True).variables)
    assert list(map(cri.KeyValue.FromString, remembered.container_envs)) == [cri.KeyValue(key="A", value=b"1")]


def test_a_record_does_not_grow_with_the_variables() -> None:
    request = creation(KUBELET, [(f"V{number}", b"x" * 1000) for number in range(5000)]).request
    assert isinstance(request, cri.CreateContainerRequest)
    container = new_container(request)
    assert len(container.description) < 1000
    assert len(container.variable_names) == 64


def test_an_update_changes_only_what_it_specifies() -> None:
    request = creation(KUBELET).request
    assert isinstance(request, cri.CreateContainerRequest)
    before = with_id(new_container(request), "c")
    update = cri.UpdateContainerResourcesRequest(
        container_id="c",
        linux={"cpu_quota": -1, "hugepage_limits": [{"page_size": "1Gi", "limit": 0}], "unified": {"a": "b"}},
        annotations={"x": "y"},
    )
    after = updated_container(before, update)
    assert after.message.container_resources == hooks.LinuxContainerResources(
        **KUBELET
        | {
            "cpu_quota": -1,
            "hugepage_limits": [{"page_size": "2Mi", "limit": 0}, {"page_size": "1Gi", "limit": 0}],
            "unified": {"memory.oom.group": "1", "a": "b"},
        }
    )
    assert dict(after.message.container_annotations) == {"x": "y"}
    assert before == with_id(new_container(request), "c")


def test_an_update_of_a_sandbox_changes_its_resources() -> None:
    before = started_sandbox(cri.RunPodSandboxRequest(config=POD), "s")
    update = cri.UpdatePodSandboxResourcesRequest(overhead={"cpu_shares": 1}, resources={"cpu_shares": 2})
    after = updated_sandbox(before, update)
    assert (after.pod.overhead.cpu_shares, after.pod.resources.cpu_shares) == (1, 2)
    assert not before.pod.HasField("resources")
    assert updated_sandbox(after, cri.UpdatePodSandboxResourcesRequest()) == after
