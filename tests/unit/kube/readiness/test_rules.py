"""Readiness rules given by the caller."""

from typing import Any

import msgspec
import pytest

from governor.kube.objects import Object
from governor.kube.readiness.kinds import compute_readiness
from governor.kube.readiness.rules import Operator, Rule, Rules, Scalar
from governor.kube.readiness.state import State, failed, progressing, ready

WIDGET: Object = {
    "apiVersion": "example.com/v1",
    "kind": "Widget",
    "metadata": {"name": "w", "generation": 2, "annotations": {"example.com/team": "shop"}},
    "spec": {"size": 3, "empty": "", "nothing": None},
    "status": {
        "phase": "Serving",
        "observedGeneration": 2,
        "ratio": 0.5,
        "done": True,
        "conditions": [{"type": "Synced", "status": "True"}, {"type": "Ready", "status": "False"}],
        "parts": [{"name": "left", "up": True}, {"name": "Ready", "up": False}],
    },
}


def _rule(path: str, operator: str, *value: Any) -> Rule:
    return msgspec.convert({"path": path, "operator": operator} | ({"value": value[0]} if value else {}), Rule)


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        (_rule("status.phase", "Exists"), True),
        (_rule("status.absent", "Exists"), False),
        (_rule("spec.nothing", "Exists"), False),
        (_rule("spec.empty", "Exists"), True),
        (_rule("status.absent.deeper", "DoesNotExist"), True),
        (_rule("status.phase", "DoesNotExist"), False),
        (_rule("status.phase", "Equals", "Serving"), True),
        (_rule("status.phase", "Equals", "serving"), False),
        (_rule("spec.size", "Equals", 3), True),
        (_rule("spec.size", "Equals", 3.0), True),
        (_rule("spec.size", "Equals", "3"), False),
        (_rule("status.done", "Equals", True), True),
        (_rule("status.done", "Equals", 1), False),
        (_rule("status.absent", "Equals", ""), False),
        (_rule("status.phase", "NotEquals", "Failed"), True),
        (_rule("status.phase", "NotEquals", "Serving"), False),
        (_rule("status.absent", "NotEquals", "Failed"), True),
        (_rule("status.phase", "In", ["Serving", "Idle"]), True),
        (_rule("status.phase", "In", ["Idle"]), False),
        (_rule("status.phase", "NotIn", ["Idle"]), True),
        (_rule("status.phase", "NotIn", ["Idle", "Serving"]), False),
        (_rule("status.absent", "NotIn", ["Idle"]), True),
        (_rule("spec.size", "AtLeast", 3), True),
        (_rule("spec.size", "AtLeast", 3.5), False),
        (_rule("status.ratio", "AtLeast", 0), True),
        (_rule("status.phase", "AtLeast", 1), False),
        (_rule("status.done", "AtLeast", 1), False),
        (_rule("status.absent", "AtLeast", -1), False),
        (_rule("status.conditions[Synced].status", "Equals", "True"), True),
        (_rule("status.conditions[Ready].status", "Equals", "True"), False),
        (_rule("status.conditions[Absent].status", "Exists"), False),
        (_rule("status.conditions[0].type", "Equals", "Synced"), True),
        (_rule("status.parts[left].up", "Equals", True), True),
        (_rule("status.parts[Ready].up", "Equals", False), True),
        (_rule("status.phase[Ready]", "Exists"), False),
        (_rule('metadata.annotations["example.com/team"]', "Equals", "shop"), True),
    ],
)
def test_a_rule_compares_the_field_at_its_path(rule: Rule, holds: bool) -> None:
    assert rule.holds(WIDGET) is holds


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"path": "", "operator": "Exists"}, "rule on '': the path is empty"),
        ({"path": "status..x", "operator": "Exists"}, "rule on 'status..x': not a path at position 6"),
        ({"path": "a", "operator": "Exists", "value": 1}, "rule on 'a': Exists takes no value"),
        ({"path": "a", "operator": "DoesNotExist", "value": ""}, "rule on 'a': DoesNotExist takes no value"),
        ({"path": "a", "operator": "Equals"}, "rule on 'a': Equals needs one value"),
        ({"path": "a", "operator": "NotEquals", "value": ["x"]}, "rule on 'a': NotEquals needs one value"),
        ({"path": "a", "operator": "In", "value": "x"}, "rule on 'a': In needs a list of values"),
        ({"path": "a", "operator": "NotIn", "value": []}, "rule on 'a': NotIn needs a list of values"),
        ({"path": "a", "operator": "AtLeast", "value": "3"}, "rule on 'a': AtLeast needs a number"),
        ({"path": "a", "operator": "AtLeast", "value": True}, "rule on 'a': AtLeast needs a number"),
        ({"path": "a", "operator": "Matches", "value": "x"}, "Invalid enum value 'Matches'"),
        ({"path": "a", "operator": "Exists", "not": True}, "unknown field `not`"),
        ({"path": "a", "operator": "Equals", "value": {}}, "Expected `"),
    ],
)
def test_an_invalid_rule_is_rejected_with_its_problem(rule: Object, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert([rule], list[Rule])
    assert message in str(caught.value)


def test_rules_without_a_readiness_rule_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least one rule under ready"):
        Rules(())


def test_every_operator_is_printable() -> None:
    examples: dict[Operator, Scalar | tuple[Scalar, ...] | None] = {
        Operator.EXISTS: None,
        Operator.DOES_NOT_EXIST: None,
        Operator.EQUALS: "x",
        Operator.NOT_EQUALS: 1,
        Operator.IN: ("a", "b"),
        Operator.NOT_IN: (True,),
        Operator.AT_LEAST: 2.5,
    }
    assert set(examples) == set(Operator)
    assert [str(Rule("a.b", operator, value)) for operator, value in examples.items()] == [
        "a.b Exists",
        "a.b DoesNotExist",
        'a.b Equals "x"',
        "a.b NotEquals 1",
        'a.b In ["a","b"]',
        "a.b NotIn [true]",
        "a.b AtLeast 2.5",
    ]


RULES = Rules(
    ready=(_rule("status.phase", "Equals", "Serving"), _rule("spec.size", "AtLeast", 3)),
    failed=(_rule("status.phase", "In", ["Broken", "Lost"]),),
)


@pytest.mark.parametrize(
    ("change", "readiness"),
    [
        ({}, ready("Rules")),
        ({"spec": {"size": 2}}, progressing("ReadinessRule", "waits for: spec.size AtLeast 3 (is 2)")),
        (
            {"status": {"observedGeneration": 2}},
            progressing("ReadinessRule", 'waits for: status.phase Equals "Serving" (is absent)'),
        ),
        (
            {"status": {"phase": "Lost", "conditions": "odd"}},
            failed("FailureRule", 'status.phase In ["Broken","Lost"] (is "Lost")'),
        ),
    ],
)
def test_rules_replace_conditions(change: Object, readiness: Any) -> None:
    assert compute_readiness(WIDGET | change, RULES) == readiness


def test_stale_status_and_deletion_take_precedence_over_rules() -> None:
    stale = WIDGET | {"status": WIDGET["status"] | {"observedGeneration": 1}}
    assert compute_readiness(stale, RULES).reason == "StaleStatus"
    deleted = WIDGET | {"metadata": {"name": "w", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert compute_readiness(deleted, RULES).state is State.TERMINATING


def test_rules_replace_the_rule_of_a_known_kind() -> None:
    ingress: Object = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"}}
    requires_address = Rules((_rule("status.loadBalancer.ingress[0]", "Exists"),))
    assert compute_readiness(ingress).state is State.READY
    assert compute_readiness(ingress, requires_address).state is State.PROGRESSING


def test_values_of_a_secret_are_hidden() -> None:
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"key": "aHVudGVyMg=="}}
    hidden = compute_readiness(secret, Rules((_rule("data.key", "DoesNotExist"), _rule("data.other", "Exists"))))
    assert hidden.message == "waits for: data.key DoesNotExist (is set); data.other Exists (is absent)"


def test_a_long_value_is_truncated() -> None:
    readiness = compute_readiness(WIDGET | {"spec": {"size": "x" * 5000}}, RULES)
    assert len(readiness.message) < 150
