"""The kinds: their names, what the generator requires of them, and that objects survive being written and read."""

from typing import Annotated

import msgspec
import pytest

from governor.domain.conditions import Actor
from governor.domain.documents import Drift
from governor.errors import GovernorError
from governor.kube.applyset import IgnoredFields
from governor.kube.readiness.rules import Operator
from governor.reconciler.kinds import DEFINITIONS
from governor.reconciler.kinds.installation import ValuesKey, ValuesSource
from governor.reconciler.kinds.module import DriftPolicy, ReadinessRule, module_object_name
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec, instance_name
from governor.reconciler.kinds.state import Problem, State
from governor.reconciler.setup.definitions import shipped_definition
from tools.generate_crds import definition_of
from tools.structural_schema import schema_of

DIGEST = f"sha256:{'a1' * 32}"


@pytest.mark.parametrize("kind", DEFINITIONS, ids=lambda each: each.kind)
def test_the_package_ships_the_definition_of_each_kind(kind: object) -> None:
    (found,) = (each for each in DEFINITIONS if each is kind)
    assert shipped_definition(found) == definition_of(found)


def test_names_and_short_names_are_unique() -> None:
    for names in ({each.name for each in DEFINITIONS}, {each.short_name for each in DEFINITIONS}):
        assert len(names) == len(DEFINITIONS)


def test_a_spec_that_was_written_and_read_is_the_same() -> None:
    spec = ModuleInstanceSpec(
        "dapr",
        "local",
        "dapr",
        "2026-01-01T00:00:00Z",
        "1.16.0",
        DIGEST,
        "dapr-system",
        "dapr",
        values={"a": {"b": [1, "x", None, True]}},
        values_from=(ValuesSource(secret_ref=ValuesKey("s")),),
        drift=DriftPolicy(Drift.WARN, (IgnoredFields(("spec.replicas",), kind="Deployment"),)),
        hold=Problem("Conflict", "two of them", Actor.USER),
    )
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ModuleInstanceSpec) == spec
    assert msgspec.convert(msgspec.to_builtins(spec), ModuleInstanceSpec) == spec


@pytest.mark.parametrize(
    ("version", "name"),
    [("1.16.0", "dapr-1.16.0"), ("v1.0.0-RC.1", "dapr-v1.0.0-rc.1"), ("1.0.0+build.7", "dapr-1.0.0-build.7")],
)
def test_the_name_of_a_module_object_is_a_name_of_kubernetes(version: str, name: str) -> None:
    assert module_object_name("dapr", version) == name


def test_names_of_instances_are_unambiguous_although_clusters_may_have_dots_and_hyphens() -> None:
    assert instance_name("a-b", "c") != instance_name("a", "b-c")
    assert instance_name("a", "b.c").partition(".") == ("a", ".", "b.c")


def test_who_must_act_determines_the_state() -> None:
    states = {actor: Problem("Reason", "message", actor).state for actor in Actor}
    assert states[Actor.USER] is State.WARNING
    assert states[Actor.OPERATOR] is State.ERROR
    assert states[Actor.NOBODY] is State.PROCESSING


def test_a_readiness_rule_is_checked_when_it_is_read() -> None:
    rule = ReadinessRule("status.phase", Operator.EQUALS, "Ready", group="example.dev", kind="Site")
    assert msgspec.convert(msgspec.to_builtins(rule), ReadinessRule) == rule
    with pytest.raises(msgspec.ValidationError, match="AtLeast needs a number"):
        msgspec.convert({"kind": "Site", "path": "status.x", "operator": "AtLeast"}, ReadinessRule)


class Undescribed(msgspec.Struct):
    first: int = 0
    """Described."""
    second: int = 0


class Unsupported(msgspec.Struct):
    number: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """A number."""


@pytest.mark.parametrize(
    ("struct", "reason"),
    [(Undescribed, "second has no description"), (Unsupported, "has no place in a structural schema")],
)
def test_a_field_that_cannot_be_described_or_expressed_is_an_error(struct: type[msgspec.Struct], reason: str) -> None:
    with pytest.raises(GovernorError, match=reason):
        schema_of(struct)
