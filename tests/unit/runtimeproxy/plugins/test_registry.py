"""The files in hookserver.d, good and bad, and who is asked."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.plugins.registration import FailurePolicy, Registration
from governor.runtimeproxy.plugins.registry import Registrations, reload, skips
from governor.values.selectors import Expression, Operator
from governor.wire.hooks.points import Hook
from tests.unit.values.strategies import brief

GOOD: dict[str, Any] = {
    "remote-endpoint": "/run/plugin.sock",
    "failure-policy": "Fail",
    "runtime-hooks": ["PreRunPodSandbox", "PostStopContainer"],
}


def load(**files: Any) -> Registrations:
    """The registrations of these files, each given as bytes or as what is in it."""
    return reload(Registrations(), contents(**files))


def contents(**files: Any) -> dict[str, bytes | OSError]:
    written = {name: file if isinstance(file, bytes) else json.dumps(file).encode() for name, file in files.items()}
    return {f"{name}.json": file for name, file in written.items()}


def only(registrations: Registrations) -> Registration:
    (registration,) = registrations.by_file.values()
    return registration


def told(registrations: Registrations) -> list[str]:
    return [str(problem) for problem in registrations.problems]


def test_a_file_as_koordlet_writes_it_is_read() -> None:
    hooks = [*map(str, Hook), "PreRemoveRunPodSandbox"]
    found = load(koordlet={"remote-endpoint": "/var/run/k.sock", "failure-policy": "Ignore", "runtime-hooks": hooks})
    assert only(found) == Registration("koordlet", "/var/run/k.sock", dict.fromkeys(Hook, FailurePolicy.IGNORE))
    assert told(found) == ["warning: koordlet.json: runtime-hooks: PreRemoveRunPodSandbox is never called"]


def test_all_optional_keys_are_read() -> None:
    found = load(
        a=GOOD
        | {
            "remote-endpoint": "unix:///run/a.sock",
            "failure-policy": {"PreRunPodSandbox": "fail"},
            "order": -1.5,
            "timeout": "1m500ms",
            "selector": {
                "matchLabels": {"tier": "batch"},
                "matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}],
            },
        }
    )
    assert only(found) == Registration(
        name="a",
        endpoint="/run/a.sock",
        policies={Hook.PRE_RUN_POD_SANDBOX: FailurePolicy.FAIL, Hook.POST_STOP_CONTAINER: FailurePolicy.IGNORE},
        order=-1.5,
        timeout_s=60.5,
        match_labels={"tier": "batch"},
        match_expressions=(Expression("team", Operator.IN, ("a",)),),
    )
    assert told(found) == []


@pytest.mark.parametrize("given", [None, "", "Ignore", "ignore"])
def test_without_a_failure_policy_failures_are_ignored(given: str | None) -> None:
    assert set(only(load(a=GOOD | {"failure-policy": given})).policies.values()) == {FailurePolicy.IGNORE}


@pytest.mark.parametrize(("given", "timeout_s"), [(None, None), (2, 2.0), (0.25, 0.25), ("500ms", 0.5), ("2s", 2.0)])
def test_a_timeout_is_seconds_or_a_duration(given: Any, timeout_s: float | None) -> None:
    assert only(load(a=GOOD | {"timeout": given})).timeout_s == timeout_s


def test_what_is_null_is_as_if_it_were_not_there() -> None:
    """As for koord-runtime-proxy, which is written in Go."""
    plain = {"remote-endpoint": "/run/a.sock", "runtime-hooks": ["PreRunPodSandbox"]}
    nulls = dict.fromkeys(("failure-policy", "order", "timeout", "selector"))
    found = load(a=plain | nulls)
    assert found == load(a=plain)
    assert told(found) == []


def test_within_a_selector_and_the_policies_of_hooks_too() -> None:
    exists = {"key": "team", "operator": "Exists"}
    plain = GOOD | {"failure-policy": {}, "selector": {"matchExpressions": [exists]}}
    nulls = GOOD | {
        "failure-policy": {"PreRunPodSandbox": None},
        "selector": {"matchLabels": None, "matchExpressions": [exists | {"values": None}]},
    }
    assert load(a=nulls) == load(a=plain)
    assert told(load(a=nulls)) == []
    no_selector = load(a=GOOD | {"selector": {"matchLabels": None, "matchExpressions": None}})
    assert no_selector == load(a=GOOD)


def test_no_hooks_at_all_are_told_also_if_they_are_null() -> None:
    assert told(load(a=GOOD | {"runtime-hooks": None})) == [
        "warning: a.json: runtime-hooks: names no hook, so the plugin is never called"
    ]


WRONG: dict[str, tuple[Any, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n", "is empty"),
    "cut off": (b'{"remote-endpoint": "/run/a', "is not JSON"),
    "not text": (b"\xff\xfe\x00", "is not JSON"),
    "not utf-8": (b'{"remote-endpoint": "/\xff"}', "is not JSON"),
    "deep": (b"[" * 100_000, "is not JSON"),
    "deep object": (b'{"a":' * 100_000, "is not JSON"),
    "huge": (b" " * 2**21 + b"{}", "bytes long"),
    "list": ([GOOD], "is not a JSON object"),
    "null": (None, "is not a JSON object"),
    "text": ("plugin", "is not a JSON object"),
    "no endpoint": ({"runtime-hooks": ["PreRunPodSandbox"]}, "remote-endpoint: is missing"),
    "endpoint in Go's spelling": ({"remoteEndpoint": "/a.sock"}, "remote-endpoint: is missing"),
    "number endpoint": (GOOD | {"remote-endpoint": 7}, "remote-endpoint"),
    "null endpoint": (GOOD | {"remote-endpoint": None}, "remote-endpoint: is missing"),
    "relative endpoint": (GOOD | {"remote-endpoint": "run/a.sock"}, "not the absolute path"),
    "tcp endpoint": (GOOD | {"remote-endpoint": "tcp://1.2.3.4:5"}, "not the absolute path"),
    "long endpoint": (GOOD | {"remote-endpoint": "/" + "x" * 107}, "at most 107 bytes"),
    "zero in endpoint": (GOOD | {"remote-endpoint": "/a\0b"}, "not the absolute path"),
    "hooks text": (GOOD | {"runtime-hooks": "PreRunPodSandbox"}, "runtime-hooks"),
    "hooks numbers": (GOOD | {"runtime-hooks": [1]}, "runtime-hooks"),
    "unknown hook": (GOOD | {"runtime-hooks": ["PreRunPod"]}, "'PreRunPod' is not a hook"),
    "policy": (GOOD | {"failure-policy": "Maybe"}, "'Maybe' is not a failure policy"),
    "policy number": (GOOD | {"failure-policy": 1}, "failure-policy"),
    "policy of unknown hook": (GOOD | {"failure-policy": {"X": "Fail"}}, "'X' is not a hook"),
    "policy by hook": (GOOD | {"failure-policy": {"PreRunPodSandbox": "Maybe"}}, "'Maybe' is not a failure policy"),
    "order text": (GOOD | {"order": "first"}, "order"),
    "order truth": (GOOD | {"order": True}, "order"),
    "timeout": (GOOD | {"timeout": 0}, "timeout"),
    "timeout negative": (GOOD | {"timeout": -1}, "timeout"),
    "timeout text": (GOOD | {"timeout": "soon"}, "'soon' is not a duration"),
    "timeout empty": (GOOD | {"timeout": ""}, "'' is not a duration"),
    "selector": (GOOD | {"selector": {"labels": {"a": "b"}}}, "selector.labels: unknown field"),
    "selector null label": (GOOD | {"selector": {"matchLabels": {"a": None}}}, "selector.matchLabels.a"),
    "selector null expression": (GOOD | {"selector": {"matchExpressions": [None]}}, "selector.matchExpressions[0]"),
    "hook null": (GOOD | {"runtime-hooks": [None]}, "runtime-hooks[0]"),
    "selector operator": (
        GOOD | {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
        "choose one of: In, NotIn",
    ),
    "selector values": (GOOD | {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "needs values"),
}


@pytest.mark.parametrize(("file", "reason"), WRONG.values(), ids=WRONG)
def test_d1_a_bad_file_is_reported_and_hurts_no_other(file: Any, reason: str) -> None:
    found = load(bad=file, good=GOOD)
    assert list(found.by_file) == ["good.json"]
    errors = [str(each) for each in found.problems if each.is_error]
    assert errors
    assert all(each.startswith("error: bad.json") and each.endswith("; the plugin is not used") for each in errors)
    assert reason in errors[0]


@pytest.mark.parametrize(("file", "reason"), WRONG.values(), ids=WRONG)
def test_d1_a_file_that_becomes_bad_keeps_its_last_good_version(file: Any, reason: str) -> None:
    good = load(a=GOOD)
    after = reload(good, contents(a=file))
    assert after.by_file == good.by_file
    assert "its last valid version stays in force" in told(after)[0]
    assert reason in told(after)[0]
    assert reload(after, contents(a=GOOD)) == good


@brief
@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_d1_no_content_whatever_stops_the_reading(content: bytes) -> None:
    assert list(load(a=content, good=GOOD).by_file) == ["good.json"]


@brief
@given(
    st.fixed_dictionaries(
        {},
        optional={
            key: st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({"a": "b"})
            for key in (*GOOD, "order", "timeout", "selector")
        },
    )
)
def test_d1_no_type_of_value_stops_the_reading(values: dict[str, Any]) -> None:
    found = load(a=GOOD | values)
    assert ("a.json" in found.by_file) != any(each.is_error for each in found.problems)


def test_a_file_that_cannot_be_read_keeps_its_last_good_version() -> None:
    good = load(a=GOOD)
    after = reload(good, {"a.json": PermissionError(13, "Permission denied")})
    assert after.by_file == good.by_file
    assert told(after) == ["error: a.json: cannot be read: Permission denied; its last valid version stays in force"]


def test_d20_a_file_that_is_gone_is_gone_at_once() -> None:
    assert reload(load(a=GOOD), {}) == Registrations()


def test_other_files_are_no_registrations() -> None:
    text = json.dumps(GOOD).encode()
    others = ("a.json.tmp", ".a.json", "README", "json", "a.yaml")
    assert reload(Registrations(), dict.fromkeys(others, text)) == Registrations()


def test_unknown_keys_and_useless_entries_are_reported() -> None:
    odd = {"note": 1, "Timeout": 3, "failure-policy": {"PreStartContainer": "Fail"}}
    found = load(a=GOOD | odd, b={"remote-endpoint": "/b"})
    assert list(found.by_file) == ["a.json", "b.json"]
    assert told(found) == [
        "warning: a.json: Timeout: is an unknown key and has no effect; did you mean timeout?",
        "warning: a.json: note: is an unknown key and has no effect",
        "warning: a.json: failure-policy: PreStartContainer is not in runtime-hooks",
        "warning: b.json: runtime-hooks: names no hook, so the plugin is never called",
    ]
    assert found.hooks == {Hook.PRE_RUN_POD_SANDBOX, Hook.POST_STOP_CONTAINER}


def test_two_files_for_one_socket_are_reported() -> None:
    assert told(load(a=GOOD, b=GOOD)) == [
        "warning: b.json: remote-endpoint: the same socket is registered by a.json; the plugin is called twice"
    ]
    assert told(load(a=GOOD, b=GOOD | {"runtime-hooks": ["PreStartContainer"]})) == []


def test_d6_all_plugins_of_a_hook_are_asked_in_their_order() -> None:
    sockets = {name: GOOD | {"remote-endpoint": f"/{name}"} for name in "abcd"}
    found = load(
        a=sockets["a"] | {"order": 5},
        c=sockets["c"],
        b=sockets["b"],
        d=sockets["d"] | {"order": -1, "runtime-hooks": ["PreRunPodSandbox"]},
    )
    assert [each.name for each in found.of(Hook.PRE_RUN_POD_SANDBOX)] == ["d", "b", "c", "a"]
    assert [each.name for each in found.of(Hook.POST_STOP_CONTAINER)] == ["b", "c", "a"]
    assert found.of(Hook.PRE_START_CONTAINER) == ()


def test_a_plugin_is_asked_about_the_pods_it_selects() -> None:
    selective = GOOD | {"selector": {"matchLabels": {"tier": "batch"}}, "remote-endpoint": "/b", "order": 1}
    found = load(a=GOOD | {"failure-policy": "Ignore"}, b=selective)
    assert [each.name for each in found.selecting(Hook.PRE_RUN_POD_SANDBOX, {"tier": "batch"})] == ["a", "b"]
    assert [each.name for each in found.selecting(Hook.PRE_RUN_POD_SANDBOX, {"tier": "web"})] == ["a"]
    assert [each.name for each in found.required(Hook.PRE_RUN_POD_SANDBOX)] == ["b"]


@pytest.mark.parametrize(
    ("labels", "annotations", "skipped"),
    [
        ({"skip": "true"}, {}, True),
        ({}, {"skip": "true"}, True),
        ({"skip": "false"}, {"skip": "true"}, True),
        ({"skip": "false"}, {}, False),
        ({"skip": "True"}, {}, False),
        ({}, {}, False),
    ],
)
def test_a_pod_skips_plugins_by_label_or_annotation(
    labels: dict[str, str], annotations: dict[str, str], skipped: bool
) -> None:
    assert skips("skip", "true", labels, annotations) is skipped


def test_without_a_key_no_pod_skips_plugins() -> None:
    assert not skips("", "", {"": ""}, {})
