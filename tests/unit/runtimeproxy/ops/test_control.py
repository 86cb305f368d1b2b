"""Messages of the control socket, filters, and the text output of calls and pods."""

import datetime
from typing import Any

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.grpc.status_codes import name_of
from governor.runtimeproxy.hooks.changes import Change, FieldChange, FieldPath, MaskedChange, Value
from governor.runtimeproxy.ops.control import (
    CallFilter,
    ContainerExplanation,
    ErrorBody,
    HookExplanation,
    PluginCall,
    PluginEntry,
    PodExplanation,
    PodList,
    PodSummary,
    SandboxExplanation,
    Subject,
    TapCall,
    TapDropped,
    TapLine,
    TapOpened,
    Trail,
)
from governor.runtimeproxy.ops.control_server import _STATUS
from governor.runtimeproxy.ops.explain_view import explanation_text, find_pod
from governor.runtimeproxy.ops.tap_view import call_text
from governor.values.secret import Secret

TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.UTC)
WEB = Subject("shop", "web", "u-1", "5ab1")


def call(**more: Any) -> TapCall:
    given: dict[str, Any] = {
        "time": TIME,
        "path": "/runtime.v1.RuntimeService/CreateContainer",
        "outcome": "completed",
        "status": "OK",
        "seconds": 0.0123,
        "subject": WEB,
    }
    return TapCall(**{**given, **more})


def changed(plugin: str, path: FieldPath, old: Value, new: Value) -> MaskedChange:
    return Change(plugin, path, old, new).masked(200)


FAILED = Trail(TIME, "CreateContainer", asked=(PluginCall("p", "PreCreateContainer", 0.002, "hangs"),))


@pytest.mark.parametrize(
    ("call_filter", "call", "is_selected"),
    [
        (CallFilter(), call(), True),
        (CallFilter(pod="web"), call(), True),
        (CallFilter(pod="web"), call(subject=Subject()), False),
        (CallFilter(method="createcontainer"), call(), True),
        (CallFilter(method="*Container"), call(), True),
        (CallFilter(method="Create"), call(), False),
        (CallFilter(held=True), call(), False),
        (CallFilter(held=True), call(held=True), True),
        (CallFilter(errors=True), call(), False),
        (CallFilter(errors=True), call(status="NOT_FOUND"), True),
        (CallFilter(errors=True), call(status="", outcome="cancelled"), True),
        (CallFilter(errors=True), call(trail=FAILED), True),
        (CallFilter(pod="web", held=True), call(), False),
    ],
)
def test_a_filter_selects_calls_that_match_all_its_fields(
    call_filter: CallFilter, call: TapCall, is_selected: bool
) -> None:
    assert call_filter.selects(call) is is_selected


CHANGED = Trail(TIME, "RunPodSandbox", changes=(changed("p", ("annotations", "a.b/c"), None, 1),))


@pytest.mark.parametrize(
    "line",
    [
        TapOpened(2),
        call(),
        call(held=True, trail=FAILED, seconds=None),
        call(held=True, trail=CHANGED),
        TapDropped(7),
    ],
)
def test_a_line_survives_encoding_and_decoding(line: TapLine) -> None:
    assert msgspec.json.decode(msgspec.json.encode(line), type=TapLine) == line


def test_a_masked_change_has_no_secrets_and_is_cut() -> None:
    change = Change("p", ("container_envs", "k" * 30), Secret("secret"), Secret("secret2"))
    assert msgspec.to_builtins(change.masked(10)) == {
        "plugin": "p",
        "path": ("container_...", "kkkkkkkkkk..."),
        "old": "***",
        "new": "***",
    }
    assert changed("p", ("cgroup_parent",), "/a", None) == FieldChange("p", ("cgroup_parent",), "/a", None)
    with pytest.raises(TypeError):
        msgspec.json.encode(change)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_error_kind_has_a_status_and_survives_the_socket(kind: Kind) -> None:
    error = msgspec.json.decode(msgspec.json.encode(ErrorBody(kind, "a-code", "why")), type=ErrorBody).error()
    assert (error.kind, error.code, error.message) == (kind, "a-code", "why")
    assert _STATUS[kind] >= 400


@pytest.mark.parametrize(("status", "name"), [(b"0", "OK"), (b"14", "UNAVAILABLE"), (b"", ""), (b"99", "99")])
def test_a_status_has_a_name(status: bytes, name: str) -> None:
    assert name_of(status) == name


def test_a_call_is_one_printable_line() -> None:
    trail = Trail(
        TIME,
        "CreateContainer",
        asked=(
            PluginCall("a", "PreCreateContainer", 0.0015),
            PluginCall("b", "PreCreateContainer", 2.0, "no\nanswer\x1b[2J"),
        ),
        changes=(
            changed("a", ("container_resources", "cpu_shares"), 0, 512),
            changed("a", ("container_envs", "T"), None, Secret("secret")),
        ),
        unused=("a changed labels.x",),
        refusal="plugin b rejected",
    )
    line = call_text(call(held=True, trail=trail, outcome="refused", status="UNAVAILABLE"))
    assert line.startswith("03:04:05.678Z     12.3ms  refused UNAVAILABLE  CreateContainer")
    for part in (
        "shop/web",
        "held",
        "[a PreCreateContainer 1.5ms]",
        "[b PreCreateContainer 2000.0ms failed: no answer\\x1b[2J]",
        "a: container_resources.cpu_shares 0 -> 512",
        "a: container_envs.T (none) -> ***",
        "not applicable: a changed labels.x",
        "rejected: plugin b rejected",
    ):
        assert part in line
    assert line.isprintable()


def test_a_call_without_details_is_one_line() -> None:
    line = call_text(call(seconds=None, status="", outcome="cancelled", subject=Subject(container_id="c" * 64)))
    assert line.split() == ["03:04:05.678Z", "?", "cancelled", "CreateContainer", "c" * 13]


PODS = PodList(
    True,
    (
        PodSummary("shop", "web", ("u-1",), ("5ab1", "77")),
        PodSummary("test", "web", ("u-2",), ("5ab2",)),
        PodSummary("shop", "db", ("u-3",)),
    ),
)


@pytest.mark.parametrize(
    ("text", "found"), [("shop/web", "u-1"), ("db", "u-3"), ("u-2", "u-2"), ("77", "u-1"), ("5ab2", "u-2")]
)
def test_a_pod_is_found_by_name_uid_or_sandbox_id(text: str, found: str) -> None:
    assert find_pod(PODS, text).uids == (found,)


@pytest.mark.parametrize(
    ("text", "kind"), [("web", Kind.INVALID), ("5ab", Kind.INVALID), ("unknown", Kind.NOT_FOUND), ("", Kind.NOT_FOUND)]
)
def test_a_text_that_matches_several_pods_or_none_is_rejected(text: str, kind: Kind) -> None:
    with pytest.raises(GovernorError) as caught:
        find_pod(PODS, text)
    assert caught.value.kind is kind
    if kind is Kind.INVALID:
        assert [each.reason for each in caught.value.details] == ["shop/web (uid u-1)", "test/web (uid u-2)"]


def explanation(**more: Any) -> PodExplanation:
    container = ContainerExplanation("c1", "main", resources={"cpu_shares": 512, "unified": {"memory.high": "1"}})
    sandbox = SandboxExplanation(
        "s1",
        "u-1",
        labels={"app": "web", "other": "x"},
        annotations={"big": "y" * 500, "a.b/c": "d"},
        cgroup_parent="/pods",
        containers=(container,),
    )
    entries = (PluginEntry("tuner", True, timeout_s=2, policy="Fail"), PluginEntry("other", False, why="the reason"))
    given: dict[str, Any] = {
        "namespace": "shop",
        "name": "web",
        "kept": True,
        "sandboxes": (sandbox,),
        "labels_that_matter": ("app",),
        "hooks": (HookExplanation("PreRunPodSandbox", "RunPodSandbox", entries),),
    }
    return PodExplanation(**{**given, **more})


def test_the_explanation_shows_selected_labels_plugins_and_changes() -> None:
    changes = (changed("tuner", ("annotations", "a.b/c"), None, "d"),)
    trail = Trail(TIME, "RunPodSandbox", changes=changes, left_out=7)
    text = explanation_text(explanation(trails=(trail, FAILED), problems=("error: x.json: is empty",)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "labels: app=web, 1 not shown here (-o yaml shows them)",
        "annotations: a.b/c=d, 1 not shown here (-o yaml shows them)",
        "cgroup parent: /pods",
        "main c1 0 cpu_shares=512, unified={memory.high: 1} 0",
        "PreRunPodSandbox RunPodSandbox 1. tuner 2s Fail -",
        "other all the reason",
        '2026-01-02 03:04:05Z RunPodSandbox - tuner annotations["a.b/c"] (none) d',
        "2026-01-02 03:04:05Z RunPodSandbox - - and 7 more - -",
        "2026-01-02 03:04:05Z PreCreateContainer - p let through hangs",
        "error: x.json: is empty",
    ):
        assert line in lines


def test_long_explanations_and_calls_are_cut_and_counted() -> None:
    many = {f"k{number:02}": "v" * 500 for number in range(40)}
    changes = tuple(changed("p", ("annotations", key), None, value) for key, value in many.items())
    trail = Trail(TIME, "RunPodSandbox", changes=changes, left_out=5)
    sandbox = SandboxExplanation("s1", "u-1", annotations={**many, "zone": "a"})
    found = explanation(sandboxes=(sandbox,), labels_that_matter=("zone",), trails=(trail,))
    [annotations] = [line for line in explanation_text(found).splitlines() if line.startswith("  annotations:")]
    assert annotations.split()[1].startswith("zone=a")
    assert annotations.count("vvv...") == 9
    assert annotations.endswith(", 31 not shown here (-o yaml shows them)")
    line = call_text(call(held=True, trail=trail))
    assert line.count("vvv...") == 8
    assert line.endswith("and 37 more changes")


def test_the_explanation_says_why_it_is_short() -> None:
    text = explanation_text(explanation(kept=False, sandboxes=(), hooks=()))
    assert "this comes from the runtime" in text
    assert "It has no sandbox: it never ran or is gone." in text


def test_control_characters_in_names_are_escaped() -> None:
    bad = "x\x1b[2J\x9b1m\r\u202e"
    container = ContainerExplanation(bad, bad, resources={"cpuset_cpus": bad, "unified": {bad: bad}})
    sandbox = SandboxExplanation(
        bad, bad, labels={bad: bad}, annotations={bad: bad}, cgroup_parent=bad, containers=(container,)
    )
    trail = Trail(
        TIME,
        bad,
        bad,
        (PluginCall(bad, bad, 1.0, bad),),
        (changed(bad, (bad,), bad, bad),),
        conflicts=(bad,),
        unused=(bad,),
        unasked=bad,
        refusal=bad,
    )
    hook = HookExplanation(bad, bad, (PluginEntry(bad, True, why=bad), PluginEntry(bad, False, why=bad)))
    text = explanation_text(
        explanation(
            namespace=bad,
            name=bad,
            unasked=bad,
            sandboxes=(sandbox,),
            skipped=bad,
            labels_that_matter=(bad,),
            hooks=(hook,),
            trails=(trail,),
            problems=(bad,),
        )
    )
    two = (PodSummary(bad, "web", (bad,)), PodSummary(bad * 2, "web", (bad,)))
    with pytest.raises(GovernorError) as caught:
        find_pod(PodList(True, two), "web")

    lines = [
        *text.split("\n"),
        *(each.reason for each in caught.value.details),
        call_text(call(status=bad, trail=trail)),
    ]
    assert all(line.isprintable() for line in lines)
