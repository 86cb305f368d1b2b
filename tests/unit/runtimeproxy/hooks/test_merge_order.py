"""Merging of several plugins: the request that each receives, and conflicts."""

import pytest

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from tests.unit.runtimeproxy.hooks.requests import (
    KUBELET,
    creation,
    environment_response,
    resources_of,
    resources_response,
    sent_container,
)
from tests.unit.runtimeproxy.hooks.strategies import add


def test_each_plugin_receives_the_changes_of_earlier_plugins() -> None:
    first = add(creation(KUBELET, [("A", b"1")]), "one", resources_response(cpu_shares=2, unified={"memory.high": "5"}))
    second = add(first, "two", environment_response(B="2"))
    assert sent_container(second).container_resources.cpu_shares == 2
    assert sent_container(second).container_resources.unified["memory.high"] == "5"
    assert dict(sent_container(second).container_envs) == {"A": "1", "B": "2"}
    assert [(each.plugin, each.field) for each in second.changes] == [
        ("two", "container_envs.B"),
        ("one", "container_resources.cpu_shares"),
        ("one", 'container_resources.unified["memory.high"]'),
    ]


def test_a_field_set_back_to_its_original_value_is_not_a_change() -> None:
    start = creation(KUBELET)
    one = add(start, "one", resources_response(cpu_shares=2))
    end = add(one, "two", resources_response(cpu_shares=512))
    assert end.changes == ()
    assert [str(each) for each in end.conflicts] == [
        "plugins one and two conflict on container_resources.cpu_shares: one set 2, two set 512"
    ]


@pytest.mark.parametrize(("policy", "shares"), [(ConflictPolicy.LAST_WINS, 3), (ConflictPolicy.FIRST_WINS, 2)])
def test_a_conflict_is_reported_by_name_and_resolved_by_policy(policy: ConflictPolicy, shares: int) -> None:
    first = add(creation(KUBELET), "one", resources_response(cpu_shares=2))
    end = add(first, "two", resources_response(cpu_shares=3, cpu_period=7), policy)
    assert (resources_of(end).cpu_shares, resources_of(end).cpu_period) == (shares, 7)
    (conflict,) = end.conflicts
    assert (conflict.first.plugin, conflict.last.plugin, conflict.first.field) == (
        "one",
        "two",
        "container_resources.cpu_shares",
    )


def test_a_conflict_can_reject_the_call() -> None:
    first = add(creation(KUBELET), "one", resources_response(cpu_shares=2))
    with pytest.raises(GovernorError, match="one and two conflict on container_resources") as caught:
        add(first, "two", resources_response(cpu_shares=3), ConflictPolicy.REFUSE)
    assert (caught.value.kind, caught.value.code) == (Kind.CONFLICT, "plugins-conflict")


def test_two_plugins_that_set_the_same_value_do_not_conflict() -> None:
    first = add(creation(KUBELET), "one", resources_response(cpu_shares=2))
    end = add(first, "two", resources_response(cpu_shares=2), ConflictPolicy.REFUSE)
    assert (end.conflicts, [each.plugin for each in end.changes]) == ((), ["one"])
