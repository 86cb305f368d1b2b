"""The next delivery of a runtime: whether it is due, sequence, attempt and removals."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from governor.domain.bundles import Bundle
from governor.domain.documents import ApplyPolicy, ResourceRef, Runtime, Strategy, read_document
from governor.domain.windows import Hold, Window
from governor.server.changes.deliveries import (
    is_due,
    next_delivery,
    present_after,
    removals,
    retry_delivery,
    state_after,
)
from governor.server.store.bundles import Content, Draft
from governor.server.store.runtime_states import RuntimeState, Target
from tests.unit.server.changes.samples import runtime

DEFAULT = ApplyPolicy()
ROLLING = ApplyPolicy(strategy=Strategy.ROLLING)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MEMBER = ("r1", 4)
PLAIN = read_document(runtime("r1"))
assert isinstance(PLAIN, Runtime)


def resource(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "Component", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def ref(name: str) -> ResourceRef:
    return ResourceRef("Component", "default", name)


def content(*names: str) -> Content:
    return Content.of(resource(name) for name in names)


def bundle(digest: str = "d1", *names: str, apply: ApplyPolicy = DEFAULT) -> Bundle:
    return Bundle(digest, tuple(resource(name) for name in names), apply)


def draft(digest: str = "d1", apply: ApplyPolicy = DEFAULT, **changes: Any) -> Draft:
    return msgspec.structs.replace(Draft(7, digest, apply, {"Profile/p": 3}, (), None, NOW, (MEMBER,)), **changes)


def state(sequence: int = 1, attempt: int = 1, digest: str = "d1", **changes: Any) -> RuntimeState:
    found = RuntimeState("r1", sequence, "id", attempt, 1, digest, DEFAULT, (), None, NOW)
    return msgspec.structs.replace(found, **changes)


def restrained(**changes: Any) -> Runtime:
    assert isinstance(PLAIN, Runtime)
    return msgspec.structs.replace(PLAIN, spec=msgspec.structs.replace(PLAIN.spec, **changes))


def test_an_empty_first_delivery_is_not_due() -> None:
    assert not is_due(bundle(), restrained(), None, is_new=True)
    assert is_due(bundle("d1", "a"), restrained(), None, is_new=True)


def test_a_delivery_is_due_if_content_or_policy_differ_or_the_runtime_is_new() -> None:
    newest, plain = Target("d1", DEFAULT, (), None), restrained()
    assert not is_due(bundle("d1", "a"), plain, newest, is_new=False)
    assert is_due(bundle("d1", "a"), plain, newest, is_new=True)
    assert is_due(bundle("d2", "a"), plain, newest, is_new=False)
    assert is_due(bundle("d1", "a", apply=ROLLING), plain, newest, is_new=False)
    assert is_due(bundle("d0"), plain, newest, is_new=False)


WINDOWS = (Window("22:00", 240),)
HOLD = Hold(datetime(2026, 1, 1, tzinfo=UTC), "inventory")


@pytest.mark.parametrize("changes", [{"windows": WINDOWS}, {"hold": HOLD}])
def test_other_windows_and_another_hold_are_delivered_without_a_new_attempt(changes: dict[str, Any]) -> None:
    """A content in quarantine is not tried again because of them."""
    given = bundle("d1", "a")
    assert is_due(given, restrained(**changes), Target("d1", DEFAULT, (), None), is_new=False)
    made = next_delivery(MEMBER, draft(**changes), content("a"), state(5, attempt=3))
    assert (made.sequence, made.attempt) == (6, 3)
    assert {name: getattr(made, name) for name in changes} == changes
    newest = Target(made.digest, made.apply, made.windows, made.hold)
    assert not is_due(given, restrained(**changes), newest, is_new=False)
    assert is_due(given, restrained(), newest, is_new=False)


def test_the_first_delivery_is_sequence_one_attempt_one() -> None:
    first = next_delivery(MEMBER, draft(), content("a"), None)
    assert (first.sequence, first.attempt, first.revision, first.removals) == (1, 1, 7, ())


def test_a_delivery_records_the_versions_of_the_documents_that_it_contains() -> None:
    assert next_delivery(MEMBER, draft(), content("a"), None).documents == {"Profile/p": 3, "Runtime/r1": 4}


def test_new_content_begins_at_attempt_one() -> None:
    made = next_delivery(MEMBER, draft("d2"), content("a"), state(5, attempt=3))
    assert (made.sequence, made.attempt) == (6, 1)


def test_a_changed_policy_raises_the_attempt_at_the_same_content() -> None:
    made = next_delivery(MEMBER, draft(apply=ROLLING), content("a"), state(5, 3))
    assert (made.sequence, made.attempt) == (6, 4)


def test_content_that_was_retried_or_rejected_before_keeps_its_attempt() -> None:
    newest = state(5, digest="d2").with_attempt("d1", 2)
    same_policy = next_delivery(MEMBER, draft(), content("a"), newest)
    new_policy = next_delivery(MEMBER, draft(apply=ROLLING), content("a"), newest)
    assert (same_policy.attempt, new_policy.attempt) == (2, 3)


def test_an_attempt_is_remembered_after_other_content_was_delivered() -> None:
    retried = retry_delivery(next_delivery(MEMBER, draft(), content("a"), None), content("a"), state())
    after = state_after(retried, NOW, state(), ())
    other = state_after(next_delivery(MEMBER, draft("d2"), content("a"), after), NOW, after, ())
    assert [next_delivery(MEMBER, draft(each), content("a"), other).attempt for each in ("d1", "d2")] == [2, 1]


def test_removals_are_resources_that_may_be_present_and_are_not_in_the_bundle() -> None:
    present = (ref("a"), ref("b"), ref("c"))
    assert removals(content("b"), present) == (ref("a"), ref("c"))
    assert present_after(content("b", "d"), present) == (*present, ref("d"))
