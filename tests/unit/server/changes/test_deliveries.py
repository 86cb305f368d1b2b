"""The next delivery of a runtime: whether it is due, sequence, attempt and removals."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from governor.domain.bundles import Bundle, Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef, Strategy
from governor.domain.windows import Hold, Window
from governor.server.changes.deliveries import History, is_due, next_delivery

DEFAULT = ApplyPolicy()
ROLLING = ApplyPolicy(strategy=Strategy.ROLLING)


def resource(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "Component", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def ref(name: str) -> ResourceRef:
    return ResourceRef("Component", "default", name)


def bundle(digest: str = "d1", *names: str, apply: ApplyPolicy = DEFAULT) -> Bundle:
    return Bundle(digest, tuple(resource(name) for name in names), apply)


def delivered(sequence: int = 1, attempt: int = 1, digest: str = "d1", apply: ApplyPolicy = DEFAULT) -> Delivery:
    return Delivery("r1", sequence, attempt, 1, digest, (resource("a"),), (), apply)


def test_an_empty_first_delivery_is_not_due() -> None:
    assert not is_due(bundle(), None, is_new=True)
    assert is_due(bundle("d1", "a"), None, is_new=True)


def test_a_delivery_is_due_if_content_or_policy_differ_or_the_runtime_is_new() -> None:
    newest = delivered()
    assert not is_due(bundle("d1", "a"), newest, is_new=False)
    assert is_due(bundle("d1", "a"), newest, is_new=True)
    assert is_due(bundle("d2", "a"), newest, is_new=False)
    assert is_due(bundle("d1", "a", apply=ROLLING), newest, is_new=False)
    assert is_due(bundle("d0"), newest, is_new=False)


WINDOWS = (Window("22:00", 240),)
HOLD = Hold(datetime(2026, 1, 1, tzinfo=UTC), "inventory")


@pytest.mark.parametrize("changes", [{"windows": WINDOWS}, {"hold": HOLD}])
def test_other_windows_and_another_hold_are_delivered_without_a_new_attempt(changes: dict[str, Any]) -> None:
    """A content in quarantine is not tried again because of them."""
    newest, changed = delivered(5, attempt=3), msgspec.structs.replace(bundle("d1", "a"), **changes)
    assert is_due(changed, newest, is_new=False)
    made = next_delivery("r1", changed, History(newest, attempt=3), revision=7, documents={})
    assert (made.sequence, made.attempt) == (6, 3)
    assert {name: getattr(made, name) for name in changes} == changes
    assert not is_due(changed, made, is_new=False)
    assert is_due(bundle("d1", "a"), made, is_new=False)


def test_the_first_delivery_is_sequence_one_attempt_one() -> None:
    first = next_delivery("r1", bundle("d1", "a"), History(), revision=7, documents={})
    assert (first.sequence, first.attempt, first.revision, first.removals) == (1, 1, 7, ())


def test_new_content_begins_at_attempt_one() -> None:
    made = next_delivery("r1", bundle("d2", "a"), History(delivered(5, attempt=3)), revision=7, documents={})
    assert (made.sequence, made.attempt) == (6, 1)


def test_a_changed_policy_raises_the_attempt_at_the_same_content() -> None:
    made = next_delivery(
        "r1", bundle("d1", "a", apply=ROLLING), History(delivered(5, 3), attempt=3), revision=7, documents={}
    )
    assert (made.sequence, made.attempt) == (6, 4)


def test_content_delivered_before_keeps_its_attempt() -> None:
    newest = delivered(5, digest="d2")
    same_policy = next_delivery("r1", bundle("d1", "a"), History(newest, attempt=2), revision=7, documents={})
    new_policy = next_delivery(
        "r1", bundle("d1", "a", apply=ROLLING), History(newest, attempt=2), revision=7, documents={}
    )
    assert (same_policy.attempt, new_policy.attempt) == (2, 3)


def test_removals_are_resources_that_may_be_present_and_are_not_in_the_bundle() -> None:
    history = History(delivered(), present=frozenset({ref("a"), ref("b"), ref("c")}))
    made = next_delivery("r1", bundle("d2", "b"), history, revision=7, documents={})
    assert made.removals == (ref("a"), ref("c"))
