"""What one Installation means for one cluster: precedence of settings, and each problem with its reason and actor."""

from typing import Any

import msgspec
import pytest

from governor.domain.conditions import Actor
from governor.domain.documents import Drift
from governor.reconciler.kinds.installation import Installation
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem
from governor.reconciler.resolution.catalogue import Catalogue
from governor.reconciler.resolution.placement import find_cycle, place
from tests.unit.reconciler.bed import catalogue, channel, cluster, digest, installation, instance, module, unreadable


def resolved(known: Catalogue, wanted: Installation, **labels: str) -> ModuleInstanceSpec:
    outcome = place(known, wanted, cluster(labels=labels)).outcome
    assert isinstance(outcome, ModuleInstanceSpec), outcome
    return outcome


def problem(known: Catalogue, wanted: Installation, **labels: str) -> Problem:
    outcome = place(known, wanted, cluster(labels=labels)).outcome
    assert isinstance(outcome, Problem), outcome
    return outcome


def test_an_installation_without_settings_takes_those_of_the_module_or_its_name() -> None:
    wanted = installation("dapr")
    plain = resolved(catalogue([wanted], [module("dapr")]), wanted)
    assert (plain.namespace, plain.release_name, plain.version) == ("dapr", "dapr", "1.0.0")
    assert (plain.chart_digest, plain.installation, plain.cluster) == (digest("1.0.0"), "dapr", "local")

    named = module("dapr", namespace="dapr-system", releaseName="d", drift={"mode": "warn"}, customResources="orphan")
    spec = resolved(catalogue([wanted], [named]), wanted)
    assert (spec.namespace, spec.release_name, spec.drift.mode) == ("dapr-system", "d", Drift.WARN)
    assert spec.custom_resources == "orphan"


def test_settings_of_the_installation_win_over_those_of_the_module() -> None:
    wanted = installation(
        "dapr", namespace="mine", releaseName="r", drift={"mode": "off"}, deletionPolicy="orphan", values={"a": 1}
    )
    defaults = module("dapr", namespace="dapr-system", releaseName="d", drift={"mode": "warn"}, values={"b": 2})
    spec = resolved(catalogue([wanted], [defaults]), wanted)
    assert (spec.namespace, spec.release_name, spec.drift.mode) == ("mine", "r", Drift.OFF)
    assert spec.deletion_policy == "orphan"
    assert spec.values == {"a": 1}, "defaults are merged by Helm, when the chart is rendered"


def test_a_channel_determines_the_version() -> None:
    wanted = installation("dapr", channel="stable")
    known = catalogue([wanted], [module("dapr"), module("dapr", "2.0.0")], [channel(dapr="2.0.0")])
    assert resolved(known, wanted).version == "2.0.0"
    assert place(known, wanted, cluster()).version == "2.0.0"


def test_labels_of_the_cluster_become_values_at_their_paths_and_win() -> None:
    wanted = installation(
        "dapr",
        values={"global": {"region": "none", "tier": "gold"}, "other": [1]},
        valuesFromLabels={"global.region": "region", 'zone["a.b"]': "zone"},
    )
    spec = resolved(catalogue([wanted], [module("dapr")]), wanted, region="eu", zone="z1")
    assert spec.values == {"global": {"region": "eu", "tier": "gold"}, "other": [1], "zone": {"a.b": "z1"}}
    assert wanted.spec.values["global"]["region"] == "none", "the Installation itself is not changed"


CASES: list[tuple[str, Actor, dict[str, Any]]] = [
    ("ModuleMissing", Actor.USER, {"wanted": installation("dapr", version="9.0.0")}),
    (
        "ModuleMissing",
        Actor.OPERATOR,
        {"wanted": installation("dapr", channel="stable"), "channels": [channel(dapr="9.0.0")]},
    ),
    ("ChannelMissing", Actor.USER, {"wanted": installation("dapr", channel="stable")}),
    (
        "ModuleNotInChannel",
        Actor.USER,
        {"wanted": installation("dapr", channel="stable"), "channels": [channel(other="1.0.0")]},
    ),
    (
        "ChannelUnreadable",
        Actor.OPERATOR,
        {"wanted": installation("dapr", channel="stable"), "channels": [unreadable("stable")]},
    ),
    ("ModuleUnreadable", Actor.OPERATOR, {"modules": [unreadable("dapr-1.0.0", module("dapr"))]}),
    ("LabelMissing", Actor.OPERATOR, {"wanted": installation("dapr", valuesFromLabels={"a": "region"})}),
    ("ValuesPathInvalid", Actor.USER, {"wanted": installation("dapr", valuesFromLabels={"a[0]": "here"})}),
    ("ValuesPathInvalid", Actor.USER, {"wanted": installation("dapr", valuesFromLabels={"a]": "here"})}),
    ("ValuesPathInvalid", Actor.USER, {"wanted": installation("dapr", valuesFromLabels={"": "here"})}),
    (
        "ValuesPathInvalid",
        Actor.USER,
        {"wanted": installation("dapr", values={"a": "text"}, valuesFromLabels={"a.b": "here"})},
    ),
    (
        "ValuesPathInvalid",
        Actor.USER,
        {"wanted": installation("dapr", valuesFromLabels={".".join("a" * 5000): "here"})},
    ),
    ("DependencyMissing", Actor.USER, {"modules": [module("dapr", depends_on=["redis"])]}),
    ("DependencyCycle", Actor.OPERATOR, {"modules": [module("dapr", depends_on=["dapr"])]}),
    ("Conflict", Actor.USER, {"others": [installation("second", "dapr")]}),
    ("Conflict", Actor.USER, {"others": [installation("all", "dapr", clusterSelector={})]}),
]


@pytest.mark.parametrize(("reason", "actor", "given"), CASES)
def test_what_cannot_be_resolved_has_a_reason_and_says_who_must_act(
    reason: str, actor: Actor, given: dict[str, Any]
) -> None:
    wanted = given.get("wanted", installation("dapr"))
    modules = given.get("modules", [module("dapr")])
    known = catalogue([wanted, *given.get("others", [])], modules, given.get("channels", []))
    found = problem(known, wanted, here="x")
    assert (found.reason, found.actor) == (reason, actor)
    assert any(each in found.message for each in ("dapr", "stable", "valuesFromLabels"))
    assert len(found.message) < 250


def test_values_that_can_be_read_but_not_written_are_a_problem_of_their_installation_alone() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    plain = installation("dapr")
    wanted = msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, values=deep))
    assert problem(catalogue([wanted], [module("dapr")]), wanted).reason == "ValuesInvalid"
    while deep:  # or its deallocation would recurse as deeply
        deep = deep.pop("a")


def test_a_conflict_names_both_and_only_where_both_are() -> None:
    first, second = installation("a", "dapr"), installation("b", "dapr", clusterSelector={"matchLabels": {"env": "x"}})
    known = catalogue([second, first], [module("dapr")])
    assert resolved(known, first).installation == "a"
    texts = {problem(known, each, env="x").message for each in (first, second)}
    assert texts == {"Installations a, b enable dapr on cluster local: keep one of them"}


def test_an_installation_that_is_being_deleted_conflicts_with_none() -> None:
    first, second = installation("a", "dapr"), installation("b", "dapr", deleted=True)
    assert resolved(catalogue([first, second], [module("dapr")]), first).installation == "a"


def test_versions_whose_objects_have_the_same_name_are_not_confused() -> None:
    wanted = installation("dapr", version="1.0.0-b")
    assert problem(catalogue([wanted], [module("dapr", "1.0.0+b")]), wanted).reason == "ModuleMissing"


def test_a_dependency_is_present_if_it_is_enabled_or_kept_but_not_if_it_is_being_removed() -> None:
    dapr, orders = installation("dapr"), installation("orders")
    modules = [module("dapr"), module("orders", depends_on=["dapr"])]
    assert resolved(catalogue([dapr, orders], modules), orders).depends_on == ("dapr",)

    live = instance(resolved(catalogue([dapr], modules), dapr))
    kept = catalogue([orders, unreadable("dapr")], modules, instances=[live])
    assert resolved(kept, orders).depends_on == ("dapr",)
    assert problem(catalogue([orders], modules, instances=[live]), orders).reason == "DependencyMissing"
    leaving = instance(live.spec, deletionTimestamp="2026-01-01T00:00:00Z")
    known = catalogue([orders, unreadable("dapr")], modules, instances=[leaving])
    assert problem(known, orders).reason == "DependencyMissing"


def test_a_dependency_elsewhere_does_not_count() -> None:
    orders, dapr = installation("orders"), installation("dapr", clusterSelector={"matchLabels": {"env": "other"}})
    modules = [module("dapr"), module("orders", depends_on=["dapr"])]
    assert problem(catalogue([orders, dapr], modules), orders).reason == "DependencyMissing"


def test_a_cycle_is_named_in_its_order_and_does_not_stop_what_only_depends_on_it() -> None:
    modules = [
        module("a", depends_on=["b"]),
        module("b", depends_on=["c"]),
        module("c", depends_on=["a"]),
        module("d", depends_on=["a"]),
    ]
    known = catalogue([installation(each) for each in "abcd"], modules)
    assert "a → b → c → a" in problem(known, installation("a")).message
    assert "c → a → b → c" in problem(known, installation("c")).message
    assert resolved(known, installation("d")).depends_on == ("a",)


def test_a_cycle_is_also_found_through_a_module_that_is_no_longer_resolved() -> None:
    old = [module("b", depends_on=["a"]), module("a")]
    live = instance(resolved(catalogue([installation("b"), installation("a")], old), installation("b")))
    broken = installation("b", channel="gone")
    known = catalogue([installation("a"), broken], [module("a", depends_on=["b"])], instances=[live])
    assert problem(known, installation("a")).reason == "DependencyCycle"


@pytest.mark.parametrize(
    ("graph", "cycle"),
    [
        ({"a": ["b"], "b": []}, ""),
        ({"a": ["a"]}, "aa"),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, ""),
        ({"a": ["b", "c"], "b": ["d"], "c": ["a"], "d": ["a"]}, "aca"),
        ({"a": ["b", "b"], "b": ["a"]}, "aba"),
    ],
)
def test_the_shortest_cycle_through_a_module_is_found(graph: dict[str, list[str]], cycle: str) -> None:
    assert "".join(find_cycle("a", lambda each: graph.get(each, ()))) == cycle


def test_a_long_chain_of_dependencies_is_followed() -> None:
    assert find_cycle("0", lambda each: [str(int(each) + 1)] if int(each) < 20_000 else []) == ()
