"""What other clients added to a resource, and when it was last changed."""

from datetime import UTC, datetime
from typing import Any

import pytest

from governor.agent.platforms.kubernetes.resources.additions import additions, alterations, contains, last_change

OURS = "governor-agent-r1"
APPLIED = {"kind": "Component", "metadata": {"name": "store"}, "spec": {"type": "state.redis", "metadata": []}}


def entry(manager: str, second: int, **fields: Any) -> dict[str, Any]:
    return {
        "manager": manager,
        "time": f"2026-01-01T00:00:{second:02}Z",
        "fieldsV1": {f"f:{key}": inner for key, inner in fields.items()},
    }


def live(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": list(entries)}}


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        ({"scopes": {}}, ["scopes"]),
        ({"spec": {"f:ignoreErrors": {}}}, ["spec.ignoreErrors"]),
        ({"spec": {".": {}, "f:api": {".": {}, "f:denied": {}}}}, ["spec.api"]),
        ({"spec": {"f:metadata": {}}}, []),
        ({"spec": {"f:metadata": {'k:{"name":"host"}': {"f:value": {}}}}}, []),
        ({"metadata": {"f:annotations": {"f:note": {}}}}, []),
    ],
)
def test_fields_that_were_not_delivered_are_additions(fields: dict[str, Any], added: list[str]) -> None:
    assert list(additions(live(entry("kubectl", 1, **fields)), APPLIED, OURS)) == added


def test_own_fields_are_no_additions() -> None:
    assert not additions(live(entry(OURS, 1, scopes={})), APPLIED, OURS)


def test_the_last_change_is_that_of_any_client_but_not_of_metadata() -> None:
    changed = live(
        entry(OURS, 1, spec={"f:type": {}}),
        entry("kubectl-edit", 2, spec={"f:metadata": {}}),
        entry("kubectl-annotate", 3, metadata={"f:annotations": {}}),
    )
    assert last_change(changed) == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert last_change(live()) == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("live", "is_contained"),
    [
        ({"a": 1, "b": [{"c": "x", "default": True}], "more": 1}, True),
        ({"a": 1, "b": [{"c": "x"}, {"c": "y"}]}, False),
        ({"a": True, "b": [{"c": "x"}]}, False),
        ({"b": [{"c": "x"}]}, False),
        ({"a": 1}, False),
    ],
)
def test_a_live_tree_may_have_more_fields_than_were_applied_but_no_others(live: Any, is_contained: bool) -> None:
    assert contains(live, {"a": 1, "b": [{"c": "x"}], "unset": None}) is is_contained


@pytest.mark.parametrize(
    ("stored", "altered"),
    [
        ({"spec": {"type": "a", "items": [{"name": "x", "value": 1, "defaulted": True}], "more": 1}}, []),
        ({"spec": {"type": "b", "items": [{"name": "x", "value": 1}]}}, [("spec", "type")]),
        ({"spec": {"type": "a", "items": [{"name": "x", "value": 2}]}}, [("spec", "items", 0, "value")]),
        ({"spec": {"type": "a", "items": []}}, [("spec", "items")]),
        ({}, [("spec",)]),
    ],
    ids=["same", "value", "item", "list", "pruned"],
)
def test_what_is_stored_otherwise_than_applied_is_an_alteration(stored: dict[str, Any], altered: list[Any]) -> None:
    applied = {"spec": {"type": "a", "items": [{"name": "x", "value": 1}], "absent": None}}
    assert list(alterations(stored, applied)) == altered
