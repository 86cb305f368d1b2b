"""Properties of merging that hold for all requests and responses."""

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import assume, given
from hypothesis import strategies as st

from governor.errors import GovernorError
from governor.runtimeproxy.cri.cri_pb2 import CreateContainerRequest, KeyValue, PodSandboxConfig
from governor.runtimeproxy.hooks.calls import Call, CriRequest, read, write
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.runtimeproxy.hooks.merge import MergedRequest, begin
from governor.runtimeproxy.hooks.questions import Answer
from governor.runtimeproxy.store.records import Sandbox, new_container, pod_of, with_id
from tests.unit.runtimeproxy.hooks.strategies import (
    FixedRecords,
    answer,
    container_responses,
    create_requests,
    echo,
    pod_responses,
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
    creation = CreateContainerRequest(pod_sandbox_id="s")
    creation.config.linux.resources.cpu_shares = 7
    creation.config.linux.resources.cpuset_cpus = "0-7"
    creation.config.envs.append(KeyValue(key="a", value=b"1").SerializeToString())
    memory = FixedRecords(
        {"s": Sandbox("s", pod_of(PodSandboxConfig(labels={"team": "a"})))},
        {"c": with_id(new_container(creation), "c")},
    )
    return begin(CALLS[request.DESCRIPTOR.name], request, memory)


@given(requests)
def test_a_plugin_that_echoes_its_request_changes_nothing(request: CriRequest) -> None:
    merged = unmerged(request)
    echoed = merged.add("echo", answer(echo(sent(merged))))
    assert echoed.changes == ()
    assert echoed.unused == ()
    assert write(echoed.result()) == write(request)


@given(requests)
def test_an_empty_response_changes_nothing(request: CriRequest) -> None:
    merged = unmerged(request)
    silent = type(echo(sent(merged)))()
    assert write(merged.add("silent", answer(silent)).result()) == write(request)


@given(exchanges)
def test_a_second_plugin_with_the_same_response_changes_nothing_more(
    drawn: tuple[CriRequest, Answer, Answer],
) -> None:
    request, response, _ = drawn
    after = unmerged(request).add("one", response)
    again = after.add("other", response)
    assert again.applied == after.applied


@given(exchanges)
def test_the_order_of_plugins_that_set_different_fields_does_not_matter(
    drawn: tuple[CriRequest, Answer, Answer],
) -> None:
    request, one, other = drawn
    start = unmerged(request)
    first, second = start.add("one", one), start.add("other", other)
    assume(not {each.path for each in first.applied} & {each.path for each in second.applied})
    # Whether a missing value is a removal depends on the whole request, which the first plugin may have changed.
    assume(all(each.new not in ("", None) for each in (*first.applied, *second.applied)))
    forwards, backwards = first.add("other", other), second.add("one", one)
    assume(all(each.new not in ("", None) for each in (*forwards.applied, *backwards.applied)))
    # A plugin that echoes a value which the other one changes conflicts with it, though alone it changes nothing.
    assume(not forwards.conflicts and not backwards.conflicts)
    assert write(forwards.result()) == write(backwards.result())


@given(exchanges)
def test_conflicts_are_reported_and_resolved_by_policy(drawn: tuple[CriRequest, Answer, Answer]) -> None:
    request, one, other = drawn
    first = unmerged(request).add("one", one)
    last_wins = first.add("other", other, ConflictPolicy.LAST_WINS)
    first_wins = first.add("other", other, ConflictPolicy.FIRST_WINS)
    assert last_wins.conflicts == first_wins.conflicts
    contested = {each.first.path for each in last_wins.conflicts}
    assert {each.path for each in first.applied} >= contested
    assert {each.plugin for each in first_wins.applied if each.path in contested} <= {"one"}
    if contested:
        with pytest.raises(GovernorError) as caught:
            first.add("other", other, ConflictPolicy.REFUSE)
        assert all(each.first.field in str(caught.value) for each in last_wins.conflicts)
    else:
        assert first.add("other", other, ConflictPolicy.REFUSE).changes == last_wins.changes


@given(exchanges)
def test_fields_of_later_versions_are_kept_whatever_plugins_change(
    drawn: tuple[CriRequest, Answer, Answer],
) -> None:
    request, one, other = drawn
    merged = unmerged(request)
    result = read(merged.call, write(merged.add("one", one).add("other", other).result()))
    assert unknown(result) >= unknown(request)


@given(requests)
def test_decoding_and_encoding_keeps_everything(request: CriRequest) -> None:
    body = write(request)
    again = read(CALLS[request.DESCRIPTOR.name], body)
    assert again == request
    assert unknown(again) == unknown(request)
    assert write(again) == body


def unknown(request: CriRequest) -> int:
    """Return the number of unknown fields."""
    return sum(len(UnknownFieldSet(each)) for each in submessages(request))
