"""Progress of a revision as a pure function of the stored records."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from governor.domain.documents import ResourceRef
from governor.domain.reports import Report, ResourceReport, State, acknowledged
from governor.server.store.deliveries import DeliveryHead, StoredReport
from governor.server.store.runtime_states import ProgressGroup
from governor.server.watch.hub import Presence
from governor.server.watch.progress import ProgressRecord, RevisionRecord, contains, revision_progress
from governor.wire.rest import ProgressCount, RevisionProgress

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def head(sequence: int = 1, time: datetime = START) -> DeliveryHead:
    return DeliveryHead("r1", sequence, 1, sequence, f"d{sequence}", time)


def stored(sequence: int, state: State, received: datetime, verified: datetime | None = None) -> StoredReport:
    part = ResourceReport(state=state, resource=ResourceRef("Component", "default", "s"))
    report = Report("r1", sequence, 1, f"d{sequence}", 1, 1, received, "test", (part,), ())
    return StoredReport(received, acknowledged(report), verified, report)


def watching(_: str) -> Presence:
    return Presence(watching=True, since=START, held_sequence=1)


def progress_of(*records: ProgressRecord, now: datetime = START) -> RevisionProgress:
    return revision_progress(1, RevisionRecord((), 0, records), watching, now)


def test_progress_is_measured_from_acceptance_to_the_verifying_report() -> None:
    verified = stored(1, State.VERIFIED, at(9), verified=at(2.5))
    record = ProgressRecord(head(), True, head(), verified, (head(), verified))
    progress = progress_of(record, now=at(100))
    assert progress.complete
    assert progress.runtimes[0].seconds == 2.5


def test_progress_of_a_retried_delivery_is_measured_from_the_retry() -> None:
    retried = msgspec.structs.replace(head(2, at(60)), attempt=2, revision=1)
    waiting = ProgressRecord(head(), True, retried, stored(1, State.FAILED, at(5)), None)
    verified = stored(2, State.VERIFIED, at(63), verified=at(63))
    done = ProgressRecord(head(), True, retried, verified, (retried, verified))
    progress = progress_of(waiting, done, now=at(61))
    assert [each.seconds for each in progress.runtimes] == [1, 3]


def test_progress_of_an_older_revision_is_measured_from_its_acceptance() -> None:
    newer = head(2, at(60))
    progress = progress_of(ProgressRecord(head(), True, newer, None, None), now=at(61))
    assert progress.runtimes[0].seconds == 61


def test_progress_is_not_done_until_the_report_is_verified() -> None:
    for state in (State.RECEIVED, State.PREFLIGHTED, State.APPLIED, State.FAILED, State.UNPROVEN):
        record = ProgressRecord(head(), True, head(), stored(1, state, at(1)), None)
        progress = progress_of(record, now=at(4))
        assert not progress.complete
        assert (progress.runtimes[0].done, progress.runtimes[0].seconds) == (False, 4)


def test_a_newer_verified_delivery_completes_an_older_revision() -> None:
    newer = stored(3, State.VERIFIED, at(5), verified=at(5))
    record = ProgressRecord(head(1), True, head(3), newer, (head(3), newer))
    progress = progress_of(record, now=at(9))
    assert (progress.complete, progress.runtimes[0].sequence) == (True, 3)


def test_a_revision_without_deliveries_is_complete() -> None:
    assert progress_of(now=START).complete


def test_counts_are_of_all_runtimes_and_done_depends_on_the_versions_of_the_documents() -> None:
    groups = (
        ProgressGroup(True, {"Profile/p": 3}, "Verified", True, None, at(4), 7),
        ProgressGroup(True, {"Profile/p": 2}, "Verified", True, None, at(9), 2),
        ProgressGroup(True, {}, "", True, None, at(5), 1),
        ProgressGroup(False, None, "", False, None, None, 3),
        ProgressGroup(False, None, "Held", True, at(60), None, 4),
    )
    record = RevisionRecord(groups, 5, (), {"Profile/p": 3}, START)
    progress = revision_progress(1, record, watching, START)
    assert (progress.complete, progress.runtimes) == (False, ())
    assert progress.counts == (
        ProgressCount("Held", False, 4, until=at(60)),
        ProgressCount("Pending", False, 3, has_agent=False),
        ProgressCount("Pending", False, 5),
        ProgressCount("Verified", False, 2),
        ProgressCount("Verified", True, 8),
    )


@pytest.mark.parametrize(
    ("profiles", "versions", "expected"),
    [
        ({"Profile/p": 3}, {"Profile/p": 3}, True),
        ({"Profile/p": 4}, {"Profile/p": 3}, True),
        ({"Profile/p": 2}, {"Profile/p": 3}, False),
        ({"Profile/other": 1}, {"Profile/p": 3}, True),
        (None, {"Profile/p": 3}, True),
    ],
)
def test_a_delivery_contains_a_revision_if_no_version_in_it_is_older(
    profiles: dict[str, int] | None, versions: dict[str, int], expected: bool
) -> None:
    assert contains(profiles, versions) is expected
