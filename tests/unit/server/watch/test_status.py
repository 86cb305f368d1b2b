"""Runtime status and revision progress as pure functions of the stored records."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from governor.domain.documents import ApplyPolicy, ResourceRef, Runtime, read_document
from governor.domain.reports import Report, ResourceReport, State, acknowledged
from governor.domain.windows import Hold, Window, hold_restraint
from governor.server.store.bundles import Draft
from governor.server.store.deliveries import DeliveryHead, StoredReport
from governor.server.store.runtime_states import ReportSummary
from governor.server.watch.hub import Presence
from governor.server.watch.reporting import with_report
from governor.server.watch.status import RuntimeRecord, pending_heads, runtime_view

START = datetime(2026, 1, 1, tzinfo=UTC)
TREE = {
    "apiVersion": "runtime-governor.dev/v1alpha1",
    "kind": "Runtime",
    "metadata": {"name": "r1", "labels": {"region": "eu"}},
    "spec": {"platform": "local"},
}

NIGHT = {"start": "22:00", "durationMinutes": 240}


def document(tree: dict[str, Any]) -> Runtime:
    read = read_document(tree)
    assert isinstance(read, Runtime)
    return read


PLAIN = document(TREE)


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
    view = runtime_view(RuntimeRecord(PLAIN, enrolled=False, newest=None, report=None), not_watching, START)
    assert (view.sequence, view.labels, view.summary.state) == (0, {"region": "eu"}, "NothingToVerify,NotEnrolled")


def test_a_report_about_an_older_delivery_leaves_the_newest_pending() -> None:
    record = RuntimeRecord(
        document(TREE), enrolled=True, newest=head(2), report=stored(1, State.VERIFIED, at(1), at(1))
    )
    view = runtime_view(record, watching, START)
    assert (view.sequence, view.digest, view.summary.state) == (2, "d2", "Pending")


def test_a_verified_runtime_without_a_watch_is_shown_as_not_watching() -> None:
    record = RuntimeRecord(PLAIN, enrolled=True, newest=head(), report=stored(1, State.VERIFIED, at(1), at(1)))
    assert runtime_view(record, watching, START).summary.state == "Verified"
    assert runtime_view(record, not_watching, START).summary.state == "Verified,NotWatching"


@pytest.mark.parametrize("held_sequence", [0, 2])
def test_what_a_watching_agent_does_not_hold_is_not_verified(held_sequence: int) -> None:
    record = RuntimeRecord(PLAIN, enrolled=True, newest=head(), report=stored(1, State.VERIFIED, at(1), at(1)))
    view = runtime_view(record, lambda _: Presence(watching=True, since=START, held_sequence=held_sequence), START)
    assert view.summary.state == "Pending"


HOLD = Hold(at(60), "inventory")
HELD_TREE = {**TREE, "spec": {"platform": "local", "hold": msgspec.to_builtins(HOLD), "windows": [NIGHT]}}
HELD = document(HELD_TREE)


def test_a_held_runtime_is_shown_as_such_until_the_hold_expires() -> None:
    record = RuntimeRecord(
        document(HELD_TREE), enrolled=True, newest=head(), report=stored(1, State.VERIFIED, at(1), at(1))
    )
    held, expired = runtime_view(record, watching, at(59)), runtime_view(record, watching, at(60))
    assert (held.summary.state, held.summary.until, held.hold) == ("Verified,Held", at(60), HOLD)
    assert held.summary.message == "held until 2026-01-01 00:01:00Z: inventory"
    assert (expired.summary.state, expired.summary.until, expired.hold) == ("Verified", None, None)
    assert held.windows == expired.windows == (Window("22:00", 240),)


def test_what_waits_for_a_hold_is_not_verified() -> None:
    waiting = restrained(stored(1, State.RECEIVED, at(1)), HOLD)
    view = runtime_view(RuntimeRecord(HELD, enrolled=True, newest=head(), report=waiting), watching, at(2))
    assert (view.summary.state, view.summary.actor, view.summary.until) == ("Held", "nobody", at(60))


def test_a_hold_that_only_the_agent_knows_is_shown_too() -> None:
    """Set by an annotation in its cluster."""
    report = restrained(stored(1, State.VERIFIED, at(1), at(1)), HOLD, waits=False)
    record = RuntimeRecord(PLAIN, enrolled=True, newest=head(), report=report)
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
    record = RuntimeRecord(PLAIN, enrolled=True, newest=head(), report=None)
    view = runtime_view(record, lambda _: Presence(watching=False, since=START, refusal="upgrade the agent"), START)
    condition = next(each for each in view.conditions if each.type == "Connected")
    assert (condition.reason, condition.message, condition.since) == ("AgentOutdated", "upgrade the agent", START)
    assert (view.summary.reason, view.summary.actor) == ("AgentOutdated", "operator")


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("presence", [not_watching, watching, lambda _: Presence(watching=True, since=START)])
def test_a_summary_shows_the_same_as_the_report_without_its_evidence(
    state: State, presence: Callable[[str], Presence]
) -> None:
    report = restrained(stored(1, state, at(1), at(1)), HOLD)
    whole = RuntimeRecord(HELD, enrolled=True, newest=head(), report=report)
    summary = with_report(ReportSummary("r1"), report.report)
    brief = RuntimeRecord(HELD, enrolled=True, newest=head(), summary=summary)
    shown, expected = (runtime_view(each, presence, at(2)) for each in (brief, whole))
    assert shown == msgspec.structs.replace(
        expected,
        report=None,
        conditions=tuple(msgspec.structs.replace(each, evidence=()) for each in expected.conditions),
    )


def test_a_summary_of_an_older_delivery_leaves_the_newest_pending() -> None:
    summary = with_report(ReportSummary("r1"), stored(1, State.VERIFIED, at(1)).report)
    record = RuntimeRecord(PLAIN, enrolled=True, newest=head(2), summary=summary)
    assert runtime_view(record, not_watching, START).summary.state == "Pending"


def test_what_is_pending_is_only_derived_for_the_given_runtimes_and_from_the_newest_draft() -> None:
    def draft(revision: int, *names: str, issued: int = 0) -> Draft:
        members = tuple((name, 1) for name in names)
        return Draft(revision, f"d{revision}", ApplyPolicy(), {}, (), None, at(revision), members, issued, revision)

    drafts = [draft(1, "r0", "r1", "r2", "r3", issued=1), draft(2, "r2", "r4")]
    found = pending_heads(drafts, {"r0", "r1", "r2"})
    assert found == {
        "r1": DeliveryHead("r1", 0, 0, 1, "d1", at(1)),
        "r2": DeliveryHead("r2", 0, 0, 2, "d2", at(2)),
    }
