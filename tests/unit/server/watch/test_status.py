"""Runtime status and revision progress as pure functions of the stored records."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from governor.domain.documents import ResourceRef
from governor.domain.reports import Report, ResourceReport, State, acknowledged
from governor.domain.windows import Hold, Window, hold_restraint
from governor.server.store.deliveries import DeliveryHead, StoredReport
from governor.server.watch.hub import Presence
from governor.server.watch.status import ProgressRecord, RuntimeRecord, revision_progress, runtime_view

START = datetime(2026, 1, 1, tzinfo=UTC)
TREE = {
    "apiVersion": "runtime-governor.dev/v1alpha1",
    "kind": "Runtime",
    "metadata": {"name": "r1", "labels": {"region": "eu"}},
    "spec": {"platform": "local"},
}

NIGHT = {"start": "22:00", "durationMinutes": 240}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def head(sequence: int = 1, time: datetime = START) -> DeliveryHead:
    return DeliveryHead("r1", sequence, 1, sequence, f"d{sequence}", time)


def stored(sequence: int, state: State, received: datetime, verified: datetime | None = None) -> StoredReport:
    part = ResourceReport(state=state, resource=ResourceRef("Component", "default", "s"))
    report = Report("r1", sequence, 1, f"d{sequence}", 1, 1, received, "test", (part,), ())
    return StoredReport(received, acknowledged(report), verified, report)


def not_watching(_: str) -> Presence:
    return Presence(watching=False, since=None)


def watching(_: str) -> Presence:
    return Presence(watching=True, since=START, held_sequence=1)


def test_a_runtime_without_deliveries_has_nothing_to_verify() -> None:
    view = runtime_view(RuntimeRecord(TREE, enrolled=False, newest=None, report=None), not_watching, START)
    assert (view.sequence, view.labels, view.summary.state) == (0, {"region": "eu"}, "NothingToVerify,NotEnrolled")


def test_a_report_about_an_older_delivery_leaves_the_newest_pending() -> None:
    record = RuntimeRecord(TREE, enrolled=True, newest=head(2), report=stored(1, State.VERIFIED, at(1), at(1)))
    view = runtime_view(record, watching, START)
    assert (view.sequence, view.digest, view.summary.state) == (2, "d2", "Pending")


def test_a_verified_runtime_without_a_watch_is_shown_as_not_watching() -> None:
    record = RuntimeRecord(TREE, enrolled=True, newest=head(), report=stored(1, State.VERIFIED, at(1), at(1)))
    assert runtime_view(record, watching, START).summary.state == "Verified"
    assert runtime_view(record, not_watching, START).summary.state == "Verified,NotWatching"


@pytest.mark.parametrize("held_sequence", [0, 2])
def test_what_a_watching_agent_does_not_hold_is_not_verified(held_sequence: int) -> None:
    record = RuntimeRecord(TREE, enrolled=True, newest=head(), report=stored(1, State.VERIFIED, at(1), at(1)))
    view = runtime_view(record, lambda _: Presence(watching=True, since=START, held_sequence=held_sequence), START)
    assert view.summary.state == "Pending"


HOLD = Hold(at(60), "inventory")
HELD_TREE = {**TREE, "spec": {"platform": "local", "hold": msgspec.to_builtins(HOLD), "windows": [NIGHT]}}


def test_a_held_runtime_is_shown_as_such_until_the_hold_expires() -> None:
    record = RuntimeRecord(HELD_TREE, enrolled=True, newest=head(), report=stored(1, State.VERIFIED, at(1), at(1)))
    held, expired = runtime_view(record, watching, at(59)), runtime_view(record, watching, at(60))
    assert (held.summary.state, held.summary.until, held.hold) == ("Verified,Held", at(60), HOLD)
    assert held.summary.message == "held until 2026-01-01 00:01:00Z: inventory"
    assert (expired.summary.state, expired.summary.until, expired.hold) == ("Verified", None, None)
    assert held.windows == expired.windows == (Window("22:00", 240),)


def test_what_waits_for_a_hold_is_neither_verified_nor_done() -> None:
    waiting = restrained(stored(1, State.RECEIVED, at(1)), HOLD)
    view = runtime_view(RuntimeRecord(HELD_TREE, enrolled=True, newest=head(), report=waiting), watching, at(2))
    assert (view.summary.state, view.summary.actor, view.summary.until) == ("Held", "nobody", at(60))
    progress = revision_progress(1, [ProgressRecord(head(), True, head(), waiting, None)], watching, now=at(4))
    assert (progress.complete, progress.runtimes[0].summary.state) == (False, "Held")


def test_a_hold_that_only_the_agent_knows_is_shown_too() -> None:
    """Set by an annotation in its cluster."""
    report = restrained(stored(1, State.VERIFIED, at(1), at(1)), HOLD, waits=False)
    record = RuntimeRecord(TREE, enrolled=True, newest=head(), report=report)
    assert [runtime_view(record, watching, at(seconds)).summary.state for seconds in (59, 60)] == [
        "Verified,Held",
        "Verified",
    ]


def restrained(given: StoredReport, hold: Hold, *, waits: bool = True) -> StoredReport:
    restraint = hold_restraint(hold, START)
    assert restraint is not None
    report = msgspec.structs.replace(given.report, restraint=msgspec.structs.replace(restraint, waits=waits))
    return msgspec.structs.replace(given, report=report, acknowledged=acknowledged(report))


def test_an_agent_whose_watch_was_rejected_is_outdated() -> None:
    record = RuntimeRecord(TREE, enrolled=True, newest=head(), report=None)
    view = runtime_view(record, lambda _: Presence(watching=False, since=START, refusal="upgrade the agent"), START)
    condition = next(each for each in view.conditions if each.type == "Connected")
    assert (condition.reason, condition.message, condition.since) == ("AgentOutdated", "upgrade the agent", START)
    assert (view.summary.reason, view.summary.actor) == ("AgentOutdated", "operator")


def test_progress_is_measured_from_acceptance_to_the_verifying_report() -> None:
    verified = stored(1, State.VERIFIED, at(9), verified=at(2.5))
    record = ProgressRecord(head(), True, head(), verified, (head(), verified))
    progress = revision_progress(1, [record], watching, now=at(100))
    assert progress.complete
    assert progress.runtimes[0].seconds == 2.5


def test_progress_of_a_retried_delivery_is_measured_from_the_retry() -> None:
    retried = msgspec.structs.replace(head(2, at(60)), attempt=2, revision=1)
    waiting = ProgressRecord(head(), True, retried, stored(1, State.FAILED, at(5)), None)
    verified = stored(2, State.VERIFIED, at(63), verified=at(63))
    done = ProgressRecord(head(), True, retried, verified, (retried, verified))
    progress = revision_progress(1, [waiting, done], watching, now=at(61))
    assert [each.seconds for each in progress.runtimes] == [1, 3]


def test_progress_of_an_older_revision_is_measured_from_its_acceptance() -> None:
    newer = head(2, at(60))
    progress = revision_progress(1, [ProgressRecord(head(), True, newer, None, None)], watching, now=at(61))
    assert progress.runtimes[0].seconds == 61


def test_progress_is_not_done_until_the_report_is_verified() -> None:
    for state in (State.RECEIVED, State.PREFLIGHTED, State.APPLIED, State.FAILED, State.UNPROVEN):
        record = ProgressRecord(head(), True, head(), stored(1, state, at(1)), None)
        progress = revision_progress(1, [record], watching, now=at(4))
        assert not progress.complete
        assert (progress.runtimes[0].done, progress.runtimes[0].seconds) == (False, 4)


def test_a_newer_verified_delivery_completes_an_older_revision() -> None:
    newer = stored(3, State.VERIFIED, at(5), verified=at(5))
    record = ProgressRecord(head(1), True, head(3), newer, (head(3), newer))
    progress = revision_progress(1, [record], watching, now=at(9))
    assert (progress.complete, progress.runtimes[0].sequence) == (True, 3)


def test_a_revision_without_deliveries_is_complete() -> None:
    assert revision_progress(1, [], watching, now=START).complete
