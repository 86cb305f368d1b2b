"""Properties of merging that hold for all requests and responses."""

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import assume, given
from hypothesis import strategies as st

from governor.errors import GovernorError
from governor.runtimeproxy.cri.messages import CriCodec, CriRequest, write
from governor.runtimeproxy.environment import Environment, variable
from governor.runtimeproxy.hooks.answers import Answer
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.runtimeproxy.hooks.merge import MergedRequest
from governor.runtimeproxy.store.records import Sandbox, new_container
from governor.wire.hooks.workload import Container, Pod, Resources
from tests.unit.runtimeproxy.hooks.strategies import (
    FixedRecords,
    add,
    answer,
    begun,
    container_responses,
    create_requests,
    echo,
    pod_responses,
    result,
    run_requests,
    sent,
    submessages,
    update_requests,
)

CALLS = {
    "RunPodSandboxRequest": Call.RUN_POD_SANDBOX,
    "CreateContainerRequest": Call.CREATE_CONTAINER,
    "UpdateContainerResourcesRequest": Call.UPDATE_CONTAINER_RESOURCES,
}
requests = run_requests() | create_requests() | update_requests()
exchanges = st.one_of(
    st.tuples(run_requests(), pod_responses.map(answer), pod_responses.map(answer)),
    st.tuples(create_requests(), container_responses.map(answer), container_responses.map(answer)),
    st.tuples(update_requests(), container_responses.map(answer), container_responses.map(answer)),
)


def unmerged(request: CriRequest) -> MergedRequest:
    """Return a request before any plugin; container ``c`` has a record with its own resources and variables."""
    container = Container("c", resources=Resources(cpu_shares=7, cpuset_cpus="0-7"))
    memory = FixedRecords(
        {"s": Sandbox("s", Pod(labels={"team": "a"}))},
        {"c": new_container("s", container, Environment([variable("a", b"1")]))},
    )
    return begun(CALLS[request.DESCRIPTOR.name], request, memory)


@given(requests)
def test_a_plugin_that_echoes_its_request_changes_nothing(request: CriRequest) -> None:
    merged = unmerged(request)
    echoed = add(merged, "echo", answer(echo(sent(merged))))
    assert echoed.changes == ()
    assert echoed.unused == ()
    assert write(result(echoed)) == write(request)


@given(requests)
def test_an_empty_response_changes_nothing(request: CriRequest) -> None:
    merged = unmerged(request)
    silent = type(echo(sent(merged)))()
    assert write(result(add(merged, "silent", answer(silent)))) == write(request)


@given(exchanges)
def test_a_second_plugin_with_the_same_response_changes_nothing_more(
    drawn: tuple[CriRequest, Answer, Answer],
) -> None:
    request, response, _ = drawn
    after = add(unmerged(request), "one", response)
    again = add(after, "other", response)
    assert again.applied == after.applied


@given(exchanges)
def test_the_order_of_plugins_that_set_different_fields_does_not_matter(
    drawn: tuple[CriRequest, Answer, Answer],
) -> None:
    request, one, other = drawn
    start = unmerged(request)
    first, second = add(start, "one", one), add(start, "other", other)
    assume(not {each.path for each in first.applied} & {each.path for each in second.applied})
    # Whether a missing value is a removal depends on the whole request, which the first plugin may have changed.
    assume(all(each.new not in ("", None) for each in (*first.applied, *second.applied)))
    forwards, backwards = add(first, "other", other), add(second, "one", one)
    assume(all(each.new not in ("", None) for each in (*forwards.applied, *backwards.applied)))
    # A plugin that echoes a value which the other one changes conflicts with it, though alone it changes nothing.
    assume(not forwards.conflicts and not backwards.conflicts)
    assert write(result(forwards)) == write(result(backwards))


@given(exchanges)
def test_conflicts_are_reported_and_resolved_by_policy(drawn: tuple[CriRequest, Answer, Answer]) -> None:
    request, one, other = drawn
    first = add(unmerged(request), "one", one)
    last_wins = add(first, "other", other, ConflictPolicy.LAST_WINS)
    first_wins = add(first, "other", other, ConflictPolicy.FIRST_WINS)
    assert last_wins.conflicts == first_wins.conflicts
    contested = {each.first.path for each in last_wins.conflicts}
    assert {each.path for each in first.applied} >= contested
    assert {each.plugin for each in first_wins.applied if each.path in contested} <= {"one"}
    if contested:
        with pytest.raises(GovernorError) as caught:
            add(first, "other", other, ConflictPolicy.REFUSE)
        assert all(each.first.field in str(caught.value) for each in last_wins.conflicts)
    else:
        assert add(first, "other", other, ConflictPolicy.REFUSE).changes == last_wins.changes


@given(exchanges)
def test_fields_of_later_versions_are_kept_whatever_plugins_change(
    drawn: tuple[CriRequest, Answer, Answer],
) -> None:
    request, one, other = drawn
    merged = unmerged(request)
    call, after = merged.message.request.call, result(add(add(merged, "one", one), "other", other))
    assert unknown(CriCodec().read(call, write(after)).message) >= unknown(request)


@given(requests)
def test_decoding_and_encoding_keeps_everything(request: CriRequest) -> None:
    body = write(request)
    again = CriCodec().read(CALLS[request.DESCRIPTOR.name], body).message
    assert again == request
    assert unknown(again) == unknown(request)
    assert write(again) == body


def unknown(request: CriRequest) -> int:
    """Return the number of unknown fields."""
    return sum(len(UnknownFieldSet(each)) for each in submessages(request))
