"""Why a plugin is not called, and lint of plugin files together."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.process.clock import VirtualClock
from governor.process.telemetry.instruments import Registry
from governor.runtimeproxy.hooks.handlers import FailurePolicy
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.metrics import HookMetrics
from governor.runtimeproxy.ops.explain import why_not_called
from governor.runtimeproxy.ops.lint import Entry, excessive_timeouts, shared_orders
from governor.runtimeproxy.plugins.client import PluginClient, RemotePlugin
from governor.runtimeproxy.plugins.messages import QuestionEncoder
from governor.runtimeproxy.plugins.registration import Registration
from governor.runtimeproxy.plugins.resync import Backlog
from governor.runtimeproxy.settings import Settings
from governor.values.selectors import Expression, Operator
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import Pod

RUN, CREATE = Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_CREATE_CONTAINER


def plugin(name: str = "p", *hooks: Hook, **more: Any) -> Registration:
    return Registration(name, f"/{name}", dict.fromkeys(hooks or (RUN,), FailurePolicy.IGNORE), **more)


def registered(*plugins: Registration) -> list[Entry]:
    return [Entry(f"{each.name}.json", each, each.match_labels) for each in plugins]


def handler(registration: Registration) -> RemotePlugin:
    clock = VirtualClock()
    client = PluginClient(registration, clock, random.Random(1), Backlog(registration.name, HookMetrics(Registry())))
    return RemotePlugin(registration, client, QuestionEncoder(), 2.0)


@pytest.mark.parametrize(
    ("registration", "labels", "why"),
    [
        (plugin(), {}, ""),
        (plugin("p", CREATE), {}, "the hook is not in its runtime-hooks"),
        (plugin(match_labels={"app": "web"}), {"app": "web"}, ""),
        (
            plugin(match_labels={"app": "web", "tier": "1"}),
            {"app": "db"},
            "its selector does not match: label app must be 'web' but is 'db'; label tier must be '1' but is not set",
        ),
        (
            plugin(match_expressions=(Expression("tier", Operator.IN, ("a", "b")),)),
            {"tier": "c"},
            "its selector does not match: label tier must be In (a, b) but is 'c'",
        ),
        (
            plugin(match_expressions=(Expression("x", Operator.DOES_NOT_EXIST),)),
            {"x": ""},
            "its selector does not match: label x must be DoesNotExist but is ''",
        ),
    ],
)
def test_the_reason_why_a_plugin_is_not_called(registration: Registration, labels: Mapping[str, str], why: str) -> None:
    assert why_not_called(handler(registration), RUN, Question(Pod(labels=labels))) == why


TEXTS = st.sampled_from(["a", "b", ""])
EXPRESSIONS = st.builds(
    Expression, TEXTS, st.sampled_from([Operator.IN, Operator.NOT_IN]), st.just(("a",))
) | st.builds(Expression, TEXTS, st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST]))


@given(
    labels=st.dictionaries(TEXTS, TEXTS),
    match_labels=st.dictionaries(TEXTS, TEXTS, max_size=2),
    expressions=st.lists(EXPRESSIONS, max_size=2),
)
def test_there_is_a_reason_exactly_if_the_plugin_is_not_called(
    labels: dict[str, str], match_labels: dict[str, str], expressions: list[Expression]
) -> None:
    registration = plugin(match_labels=match_labels, match_expressions=tuple(expressions))
    asked, question = handler(registration), Question(Pod(labels=labels))
    assert bool(why_not_called(asked, RUN, question)) is not asked.selects(question)


def test_plugins_with_the_same_order_are_reported_once() -> None:
    plugins = registered(plugin("a", RUN, CREATE), plugin("b", RUN, CREATE), plugin("c", CREATE, order=1))
    [found] = shared_orders(plugins)
    assert str(found).startswith("warning: b.json: order: equals that of a.json, so")
    assert "PreRunPodSandbox, PreCreateContainer" in str(found)


def test_each_of_many_plugins_with_the_same_order_is_reported_once() -> None:
    plugins = [plugin(name, RUN, CREATE) for name in "abcd"]
    found = [str(each) for each in shared_orders(registered(*plugins))]
    assert [each.partition(", so")[0] for each in found] == [
        "warning: b.json: order: equals that of a.json",
        "warning: c.json: order: equals that of a.json, b.json",
        "warning: d.json: order: equals that of a.json, b.json, c.json",
    ]


def test_plugins_with_disjoint_selectors_may_share_an_order() -> None:
    one, two = plugin("a", match_labels={"app": "x"}), plugin("b", match_labels={"app": "y"})
    both = plugin("b", match_labels={"other": "y"})
    assert list(shared_orders(registered(one, two))) == []
    assert len(list(shared_orders(registered(one, both)))) == 1


@pytest.mark.parametrize(("timeout_s", "count"), [(57.5, 0), (57.6, 1)])
def test_timeouts_beyond_kubelets_deadline_are_reported(timeout_s: float, count: int) -> None:
    plugins = registered(plugin("a", timeout_s=timeout_s), plugin("b", timeout_s=57.5))
    assert len(list(excessive_timeouts(plugins, 2.0, 120.0))) == count


def test_the_control_socket_defaults_to_a_path_beside_kubelets_socket() -> None:
    assert Settings().control_path == "/var/run/koord-runtimeproxy/runtimeproxy-control.sock"
    assert Settings(koord_runtimeproxy_endpoint="unix:///run/x").control_path == "/run/x-control.sock"
    assert Settings(control_endpoint="unix:///run/c.sock").control_path == "/run/c.sock"


@pytest.mark.parametrize("path", ["relative", "/var/run/containerd/containerd.sock", "/k.sock"])
def test_an_invalid_control_socket_is_rejected(path: str) -> None:
    with pytest.raises(Exception, match=path):
        Settings(control_endpoint=path, koord_runtimeproxy_endpoint="/k.sock")
