"""Valid and invalid files in hookserver.d, and which plugins are called."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.hooks.handlers import FailurePolicy, Mode
from governor.runtimeproxy.plugins.registration import EnvironmentMode, Registration
from governor.runtimeproxy.plugins.registry import Registrations, reload
from governor.values.selectors import Expression, Operator
from governor.wire.hooks.points import Hook

GOOD: dict[str, Any] = {
    "remote-endpoint": "/run/plugin.sock",
    "failure-policy": "Fail",
    "runtime-hooks": ["PreRunPodSandbox", "PostStopContainer"],
}


def load(**files: Any) -> Registrations:
    """Return the registrations of these files, each given as bytes or as its JSON value."""
    return reload(Registrations(), contents(**files))


def contents(**files: Any) -> dict[str, bytes | OSError]:
    written = {name: file if isinstance(file, bytes) else json.dumps(file).encode() for name, file in files.items()}
    return {f"{name}.json": file for name, file in written.items()}


def only(registrations: Registrations) -> Registration:
    (registration,) = registrations.by_file.values()
    return registration


def problem_texts(registrations: Registrations) -> list[str]:
    return [str(problem) for problem in registrations.problems]


def test_a_file_written_by_koordlet_is_read() -> None:
    hooks = [*map(str, Hook), "PreRemoveRunPodSandbox"]
    found = load(koordlet={"remote-endpoint": "/var/run/k.sock", "failure-policy": "Ignore", "runtime-hooks": hooks})
    assert only(found) == Registration("koordlet", "/var/run/k.sock", dict.fromkeys(Hook, FailurePolicy.IGNORE))
    assert problem_texts(found) == ["warning: koordlet.json: runtime-hooks: PreRemoveRunPodSandbox is never called"]


def test_all_optional_keys_are_read() -> None:
    found = load(
        a=GOOD
        | {
            "remote-endpoint": "unix:///run/a.sock",
            "failure-policy": {"PreRunPodSandbox": "fail"},
            "order": -1.5,
            "timeout": "1m500ms",
            "environment": "replace",
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
        environment=EnvironmentMode.REPLACE,
        match_labels={"tier": "batch"},
        match_expressions=(Expression("team", Operator.IN, ("a",)),),
    )
    assert problem_texts(found) == []


@pytest.mark.parametrize("given", [None, "", "Ignore", "ignore"])
def test_without_a_failure_policy_failures_are_ignored(given: str | None) -> None:
    assert set(only(load(a=GOOD | {"failure-policy": given})).policies.values()) == {FailurePolicy.IGNORE}


@pytest.mark.parametrize(("given", "timeout_s"), [(None, None), (2, 2.0), (0.25, 0.25), ("500ms", 0.5), ("2s", 2.0)])
def test_a_timeout_is_seconds_or_a_duration(given: Any, timeout_s: float | None) -> None:
    assert only(load(a=GOOD | {"timeout": given})).timeout_s == timeout_s


def test_null_keys_count_as_absent() -> None:
    """As in koord-runtime-proxy, which is written in Go."""
    plain = {"remote-endpoint": "/run/a.sock", "runtime-hooks": ["PreRunPodSandbox"]}
    nulls = dict.fromkeys(("failure-policy", "order", "timeout", "selector", "environment"))
    found = load(a=plain | nulls)
    assert found == load(a=plain)
    assert problem_texts(found) == []


def test_null_keys_in_selectors_and_policies_count_as_absent() -> None:
    exists = {"key": "team", "operator": "Exists"}
    plain = GOOD | {"failure-policy": {}, "selector": {"matchExpressions": [exists]}}
    nulls = GOOD | {
        "failure-policy": {"PreRunPodSandbox": None},
        "selector": {"matchLabels": None, "matchExpressions": [exists | {"values": None}]},
    }
    assert load(a=nulls) == load(a=plain)
    assert problem_texts(load(a=nulls)) == []
    no_selector = load(a=GOOD | {"selector": {"matchLabels": None, "matchExpressions": None}})
    assert no_selector == load(a=GOOD)


def test_null_hooks_cause_a_warning() -> None:
    assert problem_texts(load(a=GOOD | {"runtime-hooks": None})) == [
        "warning: a.json: runtime-hooks: names no hook, so the plugin is never called"
    ]


INVALID: dict[str, tuple[Any, str]] = {
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
    "environment": (GOOD | {"environment": "drop"}, "environment: must be"),
    "selector": (GOOD | {"selector": {"labels": {"a": "b"}}}, "selector.labels: unknown field"),
    "selector null label": (GOOD | {"selector": {"matchLabels": {"a": None}}}, "selector.matchLabels.a"),
    "selector null expression": (GOOD | {"selector": {"matchExpressions": [None]}}, "selector.matchExpressions[0]"),
    "hook null": (GOOD | {"runtime-hooks": [None]}, "runtime-hooks[0]"),
    "selector operator": (
        GOOD | {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
        "must be In, NotIn, Exists or DoesNotExist",
    ),
    "selector values": (GOOD | {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "needs values"),
}


@pytest.mark.parametrize(("file", "reason"), INVALID.values(), ids=INVALID)
def test_d1_an_invalid_file_is_reported_and_does_not_affect_others(file: Any, reason: str) -> None:
    found = load(bad=file, good=GOOD)
    assert list(found.by_file) == ["good.json"]
    errors = [str(each) for each in found.problems if each.is_error]
    assert errors
    assert all(each.startswith("error: bad.json") and each.endswith("; the plugin is not used") for each in errors)
    assert reason in errors[0]


@pytest.mark.parametrize(("file", "reason"), INVALID.values(), ids=INVALID)
def test_d1_the_last_valid_version_of_an_invalid_file_stays_in_force(file: Any, reason: str) -> None:
    good = load(a=GOOD)
    after = reload(good, contents(a=file))
    assert after.by_file == good.by_file
    assert "its last valid version stays in force" in problem_texts(after)[0]
    assert reason in problem_texts(after)[0]
    assert reload(after, contents(a=GOOD)) == good


@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_d1_no_content_stops_the_reading_of_other_files(content: bytes) -> None:
    assert list(load(a=content, good=GOOD).by_file) == ["good.json"]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            key: st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({"a": "b"})
            for key in (*GOOD, "order", "timeout", "selector")
        },
    )
)
def test_d1_a_value_of_any_type_is_either_used_or_reported(values: dict[str, Any]) -> None:
    found = load(a=GOOD | values)
    assert ("a.json" in found.by_file) != any(each.is_error for each in found.problems)


def test_the_last_valid_version_of_an_unreadable_file_stays_in_force() -> None:
    good = load(a=GOOD)
    after = reload(good, {"a.json": PermissionError(13, "Permission denied")})
    assert after.by_file == good.by_file
    assert problem_texts(after) == [
        "error: a.json: cannot be read: Permission denied; its last valid version stays in force"
    ]


def test_d20_a_deleted_file_unregisters_its_plugin_at_once() -> None:
    assert reload(load(a=GOOD), {}) == Registrations()


def test_other_files_are_ignored() -> None:
    text = json.dumps(GOOD).encode()
    others = ("a.json.tmp", ".a.json", "README", "json", "a.yaml")
    assert reload(Registrations(), dict.fromkeys(others, text)) == Registrations()


def test_unknown_keys_and_entries_without_effect_are_reported() -> None:
    odd = {"note": 1, "Timeout": 3, "failure-policy": {"PreStartContainer": "Fail"}}
    found = load(a=GOOD | odd, b={"remote-endpoint": "/b"})
    assert list(found.by_file) == ["a.json", "b.json"]
    assert problem_texts(found) == [
        "warning: a.json: Timeout: is an unknown key and has no effect; did you mean timeout?",
        "warning: a.json: note: is an unknown key and has no effect",
        "warning: a.json: failure-policy: PreStartContainer is not in runtime-hooks",
        "warning: b.json: runtime-hooks: names no hook, so the plugin is never called",
    ]
    assert found.by_file["a.json"].policies.keys() == {Hook.PRE_RUN_POD_SANDBOX, Hook.POST_STOP_CONTAINER}


@pytest.mark.parametrize(("given", "mode"), [({}, Mode.ENFORCE), ({"mode": "observe"}, Mode.OBSERVE)])
def test_a_plugin_observes_only_if_its_file_says_so(given: dict[str, str], mode: Mode) -> None:
    assert only(load(a=GOOD | given)).mode is mode
    assert "mode" in problem_texts(load(a=GOOD | {"mode": "watch"}))[0]


def test_two_files_for_one_socket_are_reported() -> None:
    assert problem_texts(load(a=GOOD, b=GOOD)) == [
        "warning: b.json: remote-endpoint: the same socket is registered by a.json; the plugin is called twice"
    ]
    assert problem_texts(load(a=GOOD, b=GOOD | {"runtime-hooks": ["PreStartContainer"]})) == []
