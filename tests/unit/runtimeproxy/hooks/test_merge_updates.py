"""Merging into updates, and into calls without fields for changes."""

from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.cri.messages import write
from governor.runtimeproxy.hooks.calls import Call
from governor.wire.hooks import hooks_pb2 as hooks
from tests.unit.runtimeproxy.hooks.requests import (
    KUBELET,
    change_texts,
    echoed,
    recorded_container,
    resources_response,
    sent_container,
    update,
)
from tests.unit.runtimeproxy.hooks.strategies import add, begun, cri_request, result, sent


def test_an_update_stays_a_partial_update() -> None:
    start = update(linux={"cpu_quota": 70000})
    assert sent_container(start).container_resources == hooks.LinuxContainerResources(**KUBELET | {"cpu_quota": 70000})
    assert result(add(start, "plugin", echoed(start))) == cri_request(start)
    end = add(start, "plugin", echoed(start, cpu_shares=2))
    assert result(end) == cri.UpdateContainerResourcesRequest(
        container_id="c", linux={"cpu_quota": 70000, "cpu_shares": 2}
    )
    assert change_texts(end) == ["plugin changed container_resources.cpu_shares from 512 to 2"]


def test_resources_can_be_added_to_an_update_of_annotations() -> None:
    end = add(update(annotations={"a": "b"}), "plugin", resources_response(cpu_quota=-1))
    assert result(end) == cri.UpdateContainerResourcesRequest(
        container_id="c", annotations={"a": "b"}, linux={"cpu_quota": -1}
    )


def test_a_cpuset_can_be_dropped_from_an_update_but_not_cleared_by_it() -> None:
    pinning = update(linux={"cpuset_cpus": "4-5"})
    unpinned = add(pinning, "plugin", echoed(pinning, cpuset_cpus=""))
    assert result(unpinned) == cri.UpdateContainerResourcesRequest(container_id="c", linux={})
    assert change_texts(unpinned) == ["plugin changed container_resources.cpuset_cpus from '4-5' to ''"]
    other = update(linux={"cpu_shares": 3})
    assert add(other, "plugin", echoed(other, cpuset_cpus="")).changes == ()


def test_changes_that_a_call_has_no_field_for_are_reported_and_not_applied() -> None:
    start = begun(Call.START_CONTAINER, cri.StartContainerRequest(container_id="c"), recorded_container())
    end = add(start, "plugin", resources_response(cpu_shares=2))
    assert end.changes == ()
    assert [str(each) for each in end.unused] == ["plugin changed container_resources.cpu_shares from 512 to 2"]
    assert sent(end) == sent(start)
    assert write(result(end)) == write(cri_request(start))
