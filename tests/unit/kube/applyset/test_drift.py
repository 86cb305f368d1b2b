"""Counting repairs."""

import datetime

import msgspec

from governor.kube.applyset.drift import Memory, ObjectDrift, Repair
from governor.kube.applyset.results import ObjectResult, Outcome
from governor.kube.applyset.settings import Settings
from governor.kube.objects import ObjectRef
from governor.values.treediff import Difference, Operation

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SETTINGS = Settings("ours", "x.example", repair_limit=2, repair_window_s=60)
REF = ObjectRef("", "ConfigMap", "shop", "a")
CHANGE = Difference("data.x", Operation.CHANGED, "theirs", "ours")
LIVE = {"metadata": {"managedFields": [{"manager": "them", "operation": "Update", "fieldsV1": {"f:data": {}}}]}}


def memory(*repairs: Repair, later_s: float = 0) -> Memory:
    return Memory(repairs, SETTINGS, NOW + datetime.timedelta(seconds=later_s))


def repaired(drift: ObjectDrift, outcome: Outcome = Outcome.CHANGED) -> ObjectDrift:
    return msgspec.structs.replace(drift, repair=ObjectResult(REF, outcome))


def test_each_repair_counts_until_the_field_is_left() -> None:
    repairs: tuple[Repair, ...] = ()
    seen = []
    for _ in range(3):
        drift = memory(*repairs).changed(REF, LIVE, [CHANGE])
        seen.append((drift.fields[0].repairs, drift.fields[0].left, drift.fields[0].managers))
        repairs = memory(*repairs).after([repaired(drift)] if drift.to_repair else [drift], [REF])
    assert seen == [(0, False, ("them",)), (1, False, ("them",)), (2, True, ("them",))]
    assert repairs == (Repair(REF, "data.x", 2, NOW),)


def test_a_failed_repair_and_a_mere_warning_do_not_count() -> None:
    drift = memory().changed(REF, LIVE, [CHANGE])
    assert memory().after([drift], [REF]) == ()
    assert memory().after([repaired(drift, Outcome.FAILED)], [REF]) == ()


def test_what_lasted_long_enough_counts_anew() -> None:
    old = Repair(REF, "data.x", 2, NOW)
    assert memory(old, later_s=59).changed(REF, LIVE, [CHANGE]).fields[0].left
    assert not memory(old, later_s=60).changed(REF, LIVE, [CHANGE]).fields[0].left
    assert memory(old, later_s=60).after([], [REF]) == ()


def test_what_is_no_longer_wanted_is_forgotten() -> None:
    assert memory(Repair(REF, "data.x", 1, NOW)).after([], []) == ()


def test_an_object_deleted_again_and_again_is_left_too() -> None:
    drift = memory(Repair(REF, "", 2, NOW)).deleted(REF)
    assert (drift.repairs, drift.left, drift.to_repair) == (2, True, False)
    fresh = memory().deleted(REF)
    assert memory().after([repaired(fresh, Outcome.CREATED)], [REF]) == (Repair(REF, "", 1, NOW),)


def test_fields_that_are_left_do_not_keep_others_from_repair() -> None:
    other = Difference("data.y", Operation.REMOVED, "theirs")
    drift = memory(Repair(REF, "data.x", 2, NOW)).changed(REF, LIVE, [CHANGE, other])
    assert drift.to_repair
    after = memory(Repair(REF, "data.x", 2, NOW)).after([repaired(drift)], [REF])
    assert {(each.path, each.count) for each in after} == {("data.x", 2), ("data.y", 1)}
