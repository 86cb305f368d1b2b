"""States and progress, made purely from what is stored."""

from datetime import UTC, datetime, timedelta

from governor.domain.documents import ResourceRef
from governor.domain.reports import Report, ResourceReport, State, acknowledged
from governor.server.store.deliveries import Heard, Issued
from governor.server.watch.hub import Presence
from governor.server.watch.status import Facts, ProgressFacts, revision_progress, runtime_view

START = datetime(2026, 1, 1, tzinfo=UTC)
TREE = {
    "apiVersion": "runtime-governor.dev/v1alpha1",
    "kind": "Runtime",
    "metadata": {"name": "r1", "labels": {"region": "eu"}},
    "spec": {"platform": "local"},
}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def issued(sequence: int = 1, time: datetime = START) -> Issued:
    return Issued("r1", sequence, 1, sequence, f"d{sequence}", time)


def heard(sequence: int, state: State, received: datetime, verified: datetime | None = None) -> Heard:
    part = ResourceReport(state=state, resource=ResourceRef("Component", "default", "s"))
    report = Report("r1", sequence, 1, f"d{sequence}", "boot", 1, received, "test", (part,), ())
    return Heard(received, acknowledged(report), verified, report)


def away(_: str) -> Presence:
    return Presence(watching=False, since=None)


def watching(_: str) -> Presence:
    return Presence(watching=True, since=START)


def test_a_runtime_without_deliveries_has_nothing_to_verify() -> None:
    view = runtime_view(Facts(TREE, enrolled=False, issued=None, heard=None), away)
    assert (view.sequence, view.labels, view.summary.state) == (0, {"region": "eu"}, "NothingToVerify,NotEnrolled")


def test_a_report_about_an_older_delivery_leaves_the_newest_pending() -> None:
    facts = Facts(TREE, enrolled=True, issued=issued(2), heard=heard(1, State.VERIFIED, at(1), at(1)))
    view = runtime_view(facts, watching)
    assert (view.sequence, view.digest, view.summary.state) == (2, "d2", "Pending")


def test_a_verified_runtime_that_is_away_says_so() -> None:
    facts = Facts(TREE, enrolled=True, issued=issued(), heard=heard(1, State.VERIFIED, at(1), at(1)))
    assert runtime_view(facts, watching).summary.state == "Verified"
    assert runtime_view(facts, away).summary.state == "Verified,NotWatching"


def test_progress_counts_from_accepted_to_the_report_that_verified() -> None:
    verified = heard(1, State.VERIFIED, at(9), verified=at(2.5))
    facts = ProgressFacts(issued(), True, issued(), verified, (issued(), verified))
    progress = revision_progress(1, [facts], watching, now=at(100))
    assert progress.complete
    assert progress.runtimes[0].seconds == 2.5


def test_progress_is_not_done_while_a_report_says_less_than_verified() -> None:
    for state in (State.RECEIVED, State.PREFLIGHTED, State.APPLIED, State.FAILED, State.UNPROVEN):
        facts = ProgressFacts(issued(), True, issued(), heard(1, state, at(1)), None)
        progress = revision_progress(1, [facts], watching, now=at(4))
        assert not progress.complete
        assert (progress.runtimes[0].done, progress.runtimes[0].seconds) == (False, 4)


def test_something_newer_completes_an_older_revision() -> None:
    newer = heard(3, State.VERIFIED, at(5), verified=at(5))
    facts = ProgressFacts(issued(1), True, issued(3), newer, (issued(3), newer))
    progress = revision_progress(1, [facts], watching, now=at(9))
    assert (progress.complete, progress.runtimes[0].sequence) == (True, 3)


def test_a_revision_that_sent_nothing_is_complete() -> None:
    assert revision_progress(1, [], watching, now=START).complete
