"""Repair history: counting and limiting repairs."""

import datetime

import msgspec

from governor.kube.applyset.drift import ObjectDrift, Repair, RepairHistory
from governor.kube.applyset.results import ObjectResult, Outcome
from governor.kube.applyset.settings import Settings
from governor.kube.objects import ObjectRef
from governor.values.treediff import Difference, Operation

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SETTINGS = Settings("ours", "x.example", repair_limit=2, repair_window_s=60)
REF = ObjectRef("", "ConfigMap", "shop", "a")
CHANGE = Difference("data.x", Operation.CHANGED, "theirs", "ours")
LIVE = {"metadata": {"managedFields": [{"manager": "them", "operation": "Update", "fieldsV1": {"f:data": {}}}]}}


def history(*repairs: Repair, later_s: float = 0) -> RepairHistory:
    return RepairHistory(repairs, SETTINGS, NOW + datetime.timedelta(seconds=later_s))


def repaired(drift: ObjectDrift, outcome: Outcome = Outcome.CHANGED) -> ObjectDrift:
    return msgspec.structs.replace(drift, repair=ObjectResult(REF, outcome))


def test_repairs_are_counted_until_the_limit() -> None:
    repairs: tuple[Repair, ...] = ()
    seen = []
    for _ in range(3):
        drift = history(*repairs).field_drift(REF, LIVE, [CHANGE])
        seen.append((drift.fields[0].repairs, drift.fields[0].exhausted, drift.fields[0].managers))
        repairs = history(*repairs).updated([repaired(drift)] if drift.repairable else [drift], [REF])
    assert seen == [(0, False, ("them",)), (1, False, ("them",)), (2, True, ("them",))]
    assert repairs == (Repair(REF, "data.x", 2, NOW),)


def test_failed_repairs_and_warnings_do_not_count() -> None:
    drift = history().field_drift(REF, LIVE, [CHANGE])
    assert history().updated([drift], [REF]) == ()
    assert history().updated([repaired(drift, Outcome.FAILED)], [REF]) == ()


def test_repairs_outside_the_window_do_not_count() -> None:
    old = Repair(REF, "data.x", 2, NOW)
    assert history(old, later_s=59).field_drift(REF, LIVE, [CHANGE]).fields[0].exhausted
    assert not history(old, later_s=60).field_drift(REF, LIVE, [CHANGE]).fields[0].exhausted
    assert history(old, later_s=60).updated([], [REF]) == ()


def test_history_of_objects_no_longer_desired_is_dropped() -> None:
    assert history(Repair(REF, "data.x", 1, NOW)).updated([], []) == ()


def test_re_creation_of_a_deleted_object_is_limited_too() -> None:
    drift = history(Repair(REF, "", 2, NOW)).deletion_drift(REF)
    assert (drift.repairs, drift.exhausted, drift.repairable) == (2, True, False)
    fresh = history().deletion_drift(REF)
    assert history().updated([repaired(fresh, Outcome.CREATED)], [REF]) == (Repair(REF, "", 1, NOW),)


def test_exhausted_fields_do_not_prevent_repair_of_others() -> None:
    other = Difference("data.y", Operation.REMOVED, "theirs")
    drift = history(Repair(REF, "data.x", 2, NOW)).field_drift(REF, LIVE, [CHANGE, other])
    assert drift.repairable
    after = history(Repair(REF, "data.x", 2, NOW)).updated([repaired(drift)], [REF])
    assert {(each.path, each.count) for each in after} == {("data.x", 2), ("data.y", 1)}
