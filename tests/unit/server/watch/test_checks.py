"""Checks: the condition Verified shows when the stored report was last found to be still true."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from governor.cli.output.description import runtime_text
from governor.domain.documents import ResourceRef, Runtime, read_document
from governor.domain.reports import Report, ResourceReport, State
from governor.process.clock import VirtualClock
from governor.server.store.deliveries import DeliveryHead, StoredReport
from governor.server.watch.hub import Hub, Watcher
from governor.server.watch.status import RuntimeRecord, runtime_view
from governor.wire.rest import RuntimeView

START = datetime(2026, 1, 1, tzinfo=UTC)
TREE = {
    "apiVersion": "runtime-governor.dev/v1alpha1",
    "kind": "Runtime",
    "metadata": {"name": "r1"},
    "spec": {"platform": "local"},
}
PART = ResourceReport(state=State.VERIFIED, resource=ResourceRef("Component", "default", "s"))
REPORT = Report("r1", 1, 1, "d1", 7, 4, START, "test", (PART,), ())


def view(hub: Hub) -> RuntimeView:
    head = DeliveryHead("r1", 1, 1, 1, "d1", START)
    stored = StoredReport(START, acknowledged=True, verified=START, report=REPORT)
    runtime = read_document(TREE)
    assert isinstance(runtime, Runtime)
    return runtime_view(RuntimeRecord(runtime, enrolled=True, newest=head, report=stored), hub.presence, START)


async def test_a_check_of_the_stored_report_is_shown_with_the_servers_time() -> None:
    clock = VirtualClock(START)
    hub = Hub(clock)
    assert view(hub).conditions[0].checked is None
    await clock.advance(300)
    with hub.open("r1", "key", Watcher("boot", held_sequence=1)) as stream:
        # The report is repeated in the new session, and not stored again.
        hub.note_check("r1", msgspec.structs.replace(REPORT.check, session=stream.session))
        await clock.advance(20)

        assert view(hub).conditions[0].checked == START + timedelta(seconds=300)
        assert "Verified: True for 5m, checked 20s ago, Verified" in runtime_text(view(hub), clock.now())


@pytest.mark.parametrize("changes", [{"n": 5}, {"session": 8}, {"attempt": 2}, {"sequence": 2}])
def test_a_check_of_another_report_or_session_is_not_shown(changes: dict[str, int]) -> None:
    hub = Hub(VirtualClock(START))
    with hub.open("r1", "key", Watcher("boot", held_sequence=1)) as stream:
        hub.note_check("r1", msgspec.structs.replace(REPORT.check, **{"session": stream.session, **changes}))
        assert view(hub).conditions[0].checked is None
