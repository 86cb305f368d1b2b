"""Records of successful calls."""

from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.cri.messages import pod_of
from governor.runtimeproxy.environment import decode_environment
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.requests import Request
from governor.runtimeproxy.store.records import Sandbox, updated_container, updated_sandbox, with_id
from governor.wire.hooks.workload import Resources
from tests.unit.runtimeproxy.hooks.requests import (
    KUBELET,
    POD,
    creation,
    environment_response,
    record,
    resources_response,
)
from tests.unit.runtimeproxy.hooks.strategies import add


def test_a_container_is_recorded_with_the_plugins_changes() -> None:
    one = add(creation(KUBELET), "one", resources_response(cpu_shares=2))
    end = add(one, "two", environment_response(A="1"))
    found = with_id(record(end), "c1")
    assert (found.id, found.sandbox_id, found.container.id) == ("c1", "s", "c1")
    assert found.container.resources is not None
    assert found.container.resources.cpu_shares == 2
    assert (found.variables, found.variable_names) == (b"", ["A"])
    assert decode_environment(record(end, with_environment=True).variables).texts() == {"A": "1"}


def test_a_record_does_not_grow_with_the_variables() -> None:
    found = record(creation(KUBELET, [(f"V{number}", b"x" * 1000) for number in range(5000)]))
    assert len(found.packed) < 1000
    assert len(found.variable_names) == 64


def test_an_update_changes_only_what_it_specifies() -> None:
    before = with_id(record(creation(KUBELET)), "c")
    resources = Resources(cpu_quota=-1, hugepage_limits={"1Gi": 0}, unified={"a": "b"})
    update = Request(Call.UPDATE_CONTAINER_RESOURCES, "", "c", resources=resources, annotations={"x": "y"})
    after = updated_container(before, update).container
    assert after.resources == Resources(
        **KUBELET
        | {
            "cpu_quota": -1,
            "hugepage_limits": {"2Mi": 0, "1Gi": 0},
            "unified": {"memory.oom.group": "1", "a": "b"},
        }
    )
    assert after.annotations == {"x": "y"}
    assert before == with_id(record(creation(KUBELET)), "c")


def test_an_update_of_a_sandbox_changes_its_resources() -> None:
    before = Sandbox("s", pod_of(cri.PodSandboxConfig(metadata=POD.metadata)))
    update = Request(
        Call.UPDATE_POD_SANDBOX_RESOURCES, "s", overhead=Resources(cpu_shares=1), resources=Resources(cpu_shares=2)
    )
    after = updated_sandbox(before, update)
    assert (after.pod.overhead, after.pod.resources) == (Resources(cpu_shares=1), Resources(cpu_shares=2))
    assert before.pod.resources is None
    assert updated_sandbox(after, Request(Call.UPDATE_POD_SANDBOX_RESOURCES, "s")) == after
