"""Which fields of a plugin's response count as changes."""

from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.hooks.calls import Call
from governor.wire.hooks import hooks_pb2 as hooks
from governor.wire.hooks.workload import FIELDS
from tests.unit.runtimeproxy.hooks.requests import (
    KUBELET,
    POD,
    change_texts,
    container_answer,
    creation,
    echoed,
    resources_of,
    resources_response,
)
from tests.unit.runtimeproxy.hooks.strategies import FixedRecords, add, answer, begun, result, sent


def test_every_field_of_resources_has_a_rule_in_both_protocols() -> None:
    for message in (cri.LinuxContainerResources, hooks.LinuxContainerResources):
        assert set(FIELDS) == {field.name for field in message.DESCRIPTOR.fields}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_period", 50000),
        ("cpu_quota", -1),
        ("cpu_quota", 20000),
        ("cpu_shares", 2),
        ("memory_limit_in_bytes", -1),
        ("memory_limit_in_bytes", 4096),
        ("oom_score_adj", -997),
        ("memory_swap_limit_in_bytes", -1),
        ("cpuset_cpus", "4-7"),
        ("cpuset_mems", "0"),
    ],
)
@pytest.mark.parametrize("echoes", [False, True], ids=["sparse", "echoing"])
def test_a_field_that_a_plugin_sets_is_the_only_one_that_changes(name: str, value: Any, echoes: bool) -> None:
    start = creation(KUBELET)
    response = echoed(start, **{name: value}) if echoes else resources_response(**{name: value})
    end = add(start, "plugin", response)
    assert resources_of(end) == cri.LinuxContainerResources(**KUBELET | {name: value})
    assert [each.path for each in end.changes] == [("container_resources", name)]


def test_a_plugin_that_echoes_its_request_can_clear_a_cpuset() -> None:
    start = creation(KUBELET)
    end = add(start, "plugin", echoed(start, cpuset_cpus="", cpu_shares=2))
    assert resources_of(end) == cri.LinuxContainerResources(**KUBELET | {"cpuset_cpus": "", "cpu_shares": 2})


@pytest.mark.parametrize(
    "response",
    [
        resources_response(),
        resources_response(cpu_shares=2),
        resources_response(cpu_shares=512),
        resources_response(cpu_period=100000, cpu_quota=50000),
        resources_response(cpu_period=100000, cpu_quota=50000, cpu_shares=512, memory_limit_in_bytes=1 << 30),
        resources_response(unified={"memory.oom.group": "1"}),
    ],
)
def test_a_plugin_that_returns_only_some_fields_clears_no_cpuset(response: Any) -> None:
    assert resources_of(add(creation(KUBELET), "plugin", response)).cpuset_cpus == "0-3"


def test_an_empty_cpuset_is_unset_if_nothing_else_was_sent() -> None:
    for only in ({"cpuset_cpus": "0-3"}, {"cpuset_cpus": "0-3", "cpu_shares": 2}):
        assert resources_of(add(creation(only), "plugin", resources_response(cpu_shares=2))).cpuset_cpus == "0-3"


def test_values_of_an_earlier_plugin_do_not_count_as_echoed() -> None:
    first = add(creation({"cpuset_cpus": "0-3"}), "one", resources_response(cpu_shares=2, cpu_period=1000))
    assert resources_of(add(first, "other", resources_response(cpu_shares=2, cpu_period=1000))).cpuset_cpus == "0-3"


def test_d22_unset_fields_reset_no_oom_score_and_drop_no_hugepages() -> None:
    end = add(
        creation(KUBELET),
        "plugin",
        resources_response(cpu_shares=2, hugepage_limits=[{"page_size": "2Mi", "limit": 9}]),
    )
    assert resources_of(end).oom_score_adj == 900
    assert [(each.page_size, each.limit) for each in resources_of(end).hugepage_limits] == [("2Mi", 9), ("1Gi", 7)]
    assert change_texts(end) == [
        "plugin changed container_resources.cpu_shares from 512 to 2",
        'plugin changed container_resources.hugepage_limits["2Mi"] from 0 to 9',
    ]


def test_unified_entries_and_page_sizes_are_added() -> None:
    extra = resources_response(unified={"memory.high": "5"}, hugepage_limits=[{"page_size": "64Ki", "limit": 0}])
    resources = resources_of(add(creation(KUBELET), "plugin", extra))
    assert dict(resources.unified) == {"memory.oom.group": "1", "memory.high": "5"}
    assert [each.page_size for each in resources.hugepage_limits] == ["2Mi", "1Gi", "64Ki"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("cpu_shares", -1), ("cpu_period", -5), ("cpu_quota", -2), ("oom_score_adj", 1001), ("oom_score_adj", -1001)],
)
def test_a_number_out_of_range_makes_the_response_invalid(name: str, value: int) -> None:
    with pytest.raises(GovernorError, match=f"{name} cannot be {value}") as caught:
        add(creation(KUBELET), "plugin", resources_response(**{name: value}))
    assert caught.value.kind is Kind.INVALID


def test_an_out_of_range_number_from_kubelet_does_not_fail_the_plugin() -> None:
    start = creation({"cpu_shares": -7})
    assert add(start, "plugin", echoed(start)).changes == ()


def test_d3_resources_are_set_in_a_request_without_a_linux_part() -> None:
    end = add(creation(), "plugin", resources_response(cpu_shares=2))
    assert resources_of(end).cpu_shares == 2


def test_d3_resources_are_set_in_a_request_without_a_config() -> None:
    message = hooks.PodSandboxHookResponse(resources={"cpu_shares": 2}, cgroup_parent="/x", labels={"a": "b"})
    end = add(begun(Call.RUN_POD_SANDBOX, cri.RunPodSandboxRequest(), FixedRecords()), "plugin", answer(message))
    expected = cri.PodSandboxConfig(linux={"cgroup_parent": "/x", "resources": {"cpu_shares": 2}}, labels={"a": "b"})
    assert result(end) == cri.RunPodSandboxRequest(config=expected)


def test_unset_fields_stay_unset() -> None:
    start = begun(Call.RUN_POD_SANDBOX, cri.RunPodSandboxRequest(config={}), FixedRecords())
    assert sent(start) == hooks.PodSandboxHookRequest()
    end = add(start, "plugin", answer(hooks.PodSandboxHookResponse(resources={})))
    assert result(end) == cri.RunPodSandboxRequest(config={})
    assert sent(creation()).HasField("container_resources") is False


def test_labels_and_annotations_are_added_and_never_dropped() -> None:
    start = begun(Call.RUN_POD_SANDBOX, cri.RunPodSandboxRequest(config=POD), FixedRecords())
    end = add(start, "plugin", answer(hooks.PodSandboxHookResponse(labels={"app": "shop"}, annotations={"x.io/y": ""})))
    request = result(end)
    assert isinstance(request, cri.RunPodSandboxRequest)
    assert dict(request.config.labels) == {"app": "shop"}
    assert dict(request.config.annotations) == {"note": "x", "x.io/y": ""}
    assert request.config.linux == POD.linux
    assert change_texts(end) == [
        "plugin changed annotations[\"x.io/y\"] from None to ''",
        "plugin changed labels.app from 'web' to 'shop'",
    ]


def test_the_cgroup_parent_of_a_container_is_set_in_its_sandbox_config() -> None:
    end = add(creation(), "plugin", container_answer(pod_cgroup_parent="/besteffort"))
    request = result(end)
    assert isinstance(request, cri.CreateContainerRequest)
    assert request.sandbox_config.linux.cgroup_parent == "/besteffort"
    assert request.sandbox_config.metadata == POD.metadata
