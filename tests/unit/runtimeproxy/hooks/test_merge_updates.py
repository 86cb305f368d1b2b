"""What plugins may do to calls that change little or nothing."""

from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.hooks.calls import Call, write
from governor.runtimeproxy.hooks.merge import begin
from governor.wire.hooks import hooks_pb2 as hooks
from tests.unit.runtimeproxy.hooks.requests import KUBELET, answer, known_container, repeated, told, update


def test_an_update_stays_a_partial_update() -> None:
    start = update(linux={"cpu_quota": 70000})
    assert isinstance(start.hook_request, hooks.ContainerResourceHookRequest)
    assert start.hook_request.container_resources == hooks.LinuxContainerResources(**KUBELET | {"cpu_quota": 70000})
    assert start.add("plugin", repeated(start)).result() == start.request
    end = start.add("plugin", repeated(start, cpu_shares=2))
    assert end.result() == cri.UpdateContainerResourcesRequest(
        container_id="c", linux={"cpu_quota": 70000, "cpu_shares": 2}
    )
    assert told(end) == ["plugin changed container_resources.cpu_shares from 512 to 2"]


def test_an_update_of_annotations_alone_can_get_resources() -> None:
    end = update(annotations={"a": "b"}).add("plugin", answer(cpu_quota=-1))
    assert end.result() == cri.UpdateContainerResourcesRequest(
        container_id="c", annotations={"a": "b"}, linux={"cpu_quota": -1}
    )


def test_an_update_can_cease_to_pin_but_not_clear_what_it_does_not_set() -> None:
    pinning = update(linux={"cpuset_cpus": "4-5"})
    unpinned = pinning.add("plugin", repeated(pinning, cpuset_cpus=""))
    assert unpinned.result() == cri.UpdateContainerResourcesRequest(container_id="c", linux={})
    assert told(unpinned) == ["plugin changed container_resources.cpuset_cpus from '4-5' to ''"]
    other = update(linux={"cpu_shares": 3})
    assert other.add("plugin", repeated(other, cpuset_cpus="")).changes == ()


def test_what_a_call_has_no_place_for_is_reported_and_not_passed_on() -> None:
    start = begin(Call.START_CONTAINER, cri.StartContainerRequest(container_id="c"), known_container())
    end = start.add("plugin", answer(cpu_shares=2))
    assert end.changes == ()
    assert [str(each) for each in end.unused] == ["plugin changed container_resources.cpu_shares from 512 to 2"]
    assert end.hook_request == start.hook_request
    assert write(end.result()) == write(start.request)
