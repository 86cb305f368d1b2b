"""Runtime status and revision progress as pure functions of the stored records."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from governor.domain.documents import ResourceRef
from governor.domain.reports import Report, ResourceReport, State, acknowledged
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
    view = runtime_view(RuntimeRecord(TREE, enrolled=False, newest=None, report=None), not_watching)
    assert (view.sequence, view.labels, view.summary.state) == (0, {"region": "eu"}, "NothingToVerify,NotEnrolled")


def test_a_report_about_an_older_delivery_leaves_the_newest_pending() -> None:
    record = RuntimeRecord(TREE, enrolled=True, newest=head(2), report=stored(1, State.VERIFIED, at(1), at(1)))
    view = runtime_view(record, watching)
    assert (view.sequence, view.digest, view.summary.state) == (2, "d2", "Pending")


def test_a_verified_runtime_without_a_watch_is_shown_as_not_watching() -> None:
    record = RuntimeRecord(TREE, enrolled=True, newest=head(), report=stored(1, State.VERIFIED, at(1), at(1)))
    assert runtime_view(record, watching).summary.state == "Verified"
    assert runtime_view(record, not_watching).summary.state == "Verified,NotWatching"


@pytest.mark.parametrize("held_sequence", [0, 2])
def test_what_a_watching_agent_does_not_hold_is_not_verified(held_sequence: int) -> None:
    record = RuntimeRecord(TREE, enrolled=True, newest=head(), report=stored(1, State.VERIFIED, at(1), at(1)))
    view = runtime_view(record, lambda _: Presence(watching=True, since=START, held_sequence=held_sequence))
    assert view.summary.state == "Pending"


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
