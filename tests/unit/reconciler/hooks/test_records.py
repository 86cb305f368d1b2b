"""Records of hooks."""

import datetime

from governor.reconciler.hooks.records import records_for
from governor.reconciler.kinds.module_instance import HookRecord, HookState

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TIME = "2026-01-01T00:00:00Z"


def record(hook: str, event: str, state: HookState = HookState.SUCCEEDED, reference: str = "a") -> HookRecord:
    return HookRecord(hook, event, reference, state, TIME)


def test_records_of_other_references_are_dropped() -> None:
    stored = (record("x", "pre-upgrade", reference="b"), record("x", "pre-upgrade"))
    assert records_for("pre-upgrade", "a", stored).entries == stored[1:]
    assert not records_for("pre-upgrade", "c", stored).has_succeeded("x")


def test_a_success_counts_for_its_event_only() -> None:
    stored = (record("x", "pre-install"), record("y", "post-install", HookState.STARTED))
    assert records_for("pre-install", "a", stored).has_succeeded("x")
    assert not records_for("post-install", "a", stored).has_succeeded("x")
    assert not records_for("post-install", "a", stored).has_succeeded("y")
    assert records_for("post-install", "a", stored).of_event() == stored[1:]


def test_a_new_state_replaces_the_last_one_and_comes_last() -> None:
    stored = (record("x", "pre-install", HookState.STARTED), record("y", "pre-install"), record("x", "post-install"))
    changed = records_for("pre-install", "a", stored).with_state("x", HookState.STARTED, NOW, "old")
    started = HookRecord("x", "pre-install", "a", HookState.STARTED, TIME, "old")
    assert changed.entries == (*stored[1:], started)
    assert changed.get("x") == started


def test_the_object_of_a_hook_belongs_to_the_event_that_used_it_last() -> None:
    stored = (record("x", "pre-install"), record("x", "post-install", HookState.STARTED))
    assert not records_for("pre-install", "a", stored).last_used("x")
    assert records_for("post-install", "a", stored).last_used("x")
    assert not records_for("pre-install", "a", ()).last_used("x")
