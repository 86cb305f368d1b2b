"""Which plugins and policies are called at a hook, and in which order."""

from collections.abc import Mapping

import msgspec
import pytest

from governor.process.clock import VirtualClock
from governor.process.telemetry.instruments import Registry
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.runtimeproxy.hooks.handlers import Handler, Handlers
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.hooks.rounds import HookSettings, skips
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.plugins.client import Plugins
from governor.runtimeproxy.plugins.registry import Registrations, reload
from governor.runtimeproxy.policies.source import PolicySource
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import Pod

GOOD = {
    "remote-endpoint": "/run/a.sock",
    "failure-policy": "Fail",
    "runtime-hooks": ["PreRunPodSandbox", "PostStopContainer"],
}
RUN = Hook.PRE_RUN_POD_SANDBOX


def handlers(**files: Mapping[str, object]) -> Handlers:
    """Return the handlers of these plugin files."""
    found = Handlers()
    contents = {f"{name}.json": msgspec.json.encode(each) for name, each in files.items()}
    Plugins(VirtualClock(), 2.0, found, HookMetrics(Registry())).replace(reload(Registrations(), contents))
    return found


def names(found: tuple[Handler, ...]) -> list[str]:
    return [each.settings.name for each in found]


def test_d6_all_plugins_of_a_hook_are_called_in_order() -> None:
    sockets = {name: GOOD | {"remote-endpoint": f"/{name}"} for name in "abcd"}
    found = handlers(
        a=sockets["a"] | {"order": 5},
        c=sockets["c"],
        b=sockets["b"],
        d=sockets["d"] | {"order": -1, "runtime-hooks": ["PreRunPodSandbox"]},
    )
    assert names(found.of(RUN)) == ["d", "b", "c", "a"]
    assert names(found.of(Hook.POST_STOP_CONTAINER)) == ["b", "c", "a"]
    assert found.of(Hook.PRE_START_CONTAINER) == ()


def test_a_plugin_is_called_for_the_pods_it_selects() -> None:
    selective = GOOD | {"selector": {"matchLabels": {"tier": "batch"}}, "remote-endpoint": "/b", "order": 1}
    found = handlers(a=GOOD | {"failure-policy": "Ignore"}, b=selective)
    assert names(found.selecting(RUN, Question(Pod(labels={"tier": "batch"})))) == ["a", "b"]
    assert names(found.selecting(RUN, Question(Pod(labels={"tier": "web"})))) == ["a"]
    assert names(found.required(RUN)) == ["b"]


def test_a_plugin_that_observes_is_never_required() -> None:
    assert handlers(a=GOOD | {"mode": "observe"}).required(RUN) == ()


def test_policies_take_their_turns_among_plugins() -> None:
    found = handlers(a=GOOD, c=GOOD | {"order": 2, "remote-endpoint": "/c"})
    policy = """
apiVersion: runtime-governor.dev/v1alpha1
kind: NodePolicy
metadata: {name: p}
spec: {order: 1, pod: {set: {cpuShares: 2}}}
"""
    PolicySource(found).replace({"p.yaml": policy.encode()})
    assert names(found.of(RUN)) == ["a", "policy/p", "c"]


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
    settings = HookSettings(2.0, ConflictPolicy.LAST_WINS, "skip", "true")
    assert skips(settings, labels, annotations) is skipped


def test_without_a_key_no_pod_skips_plugins() -> None:
    assert not skips(HookSettings(2.0, ConflictPolicy.LAST_WINS, "", ""), {"": ""}, {})
