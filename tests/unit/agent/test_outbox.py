"""Sending reports: the newest one, until the server accepts it."""

import asyncio
import random
from datetime import UTC, datetime
from typing import cast

from governor.agent.outbox import Outbox, send_reports
from governor.agent.verification.findings import uniform
from governor.client import Client, WatchSession
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.reports import Evidence, Report, State, WorkloadRef
from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.wire.reports import Report1

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = ResourceRef("Component", "default", "one")
APP = WorkloadRef("default", "Sidecar", "app")
DELIVERY = Delivery("r1", 3, 1, 1, "sha256:0", (), (), ApplyPolicy())


class Server:
    """Answers reports with the given errors and records the accepted ones."""

    def __init__(self, *answers: Kind | None) -> None:
        self._answers = list(answers)
        self.accepted: list[int] = []
        self.reports: list[Report | Report1] = []

    async def report(self, report: Report | Report1) -> None:
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise GovernorError(answer, "test", "test error")
        self.accepted.append(report.n)
        self.reports.append(report)


def put(outbox: Outbox, state: State) -> None:
    outbox.put(DELIVERY, uniform(state, [ONE], {APP: 1}, Evidence("agent", NOW, state)))


async def send(server: Server, *states: State, advance_s: float = 100.0) -> list[int]:
    clock = VirtualClock()
    outbox = Outbox(clock)
    outbox.watch_opened(WatchSession(1, 2))
    for state in states[:-1]:
        put(outbox, state)
    retries = Retries(Backoff(1, 8), random.Random(1))
    sending = asyncio.create_task(send_reports(outbox, cast("Client", server), retries, clock))
    await clock.advance(0)
    put(outbox, states[-1])
    await clock.advance(advance_s)
    sending.cancel()
    return server.accepted


async def test_a_report_that_could_not_be_sent_is_replaced_by_a_newer_one() -> None:
    assert await send(Server(Kind.UNAVAILABLE, Kind.UNAVAILABLE), State.RECEIVED, State.APPLIED) == [2]


async def test_a_rejected_report_is_not_sent_again() -> None:
    assert await send(Server(Kind.INVALID), State.RECEIVED, State.APPLIED) == [2]


async def test_reports_are_numbered_and_an_unchanged_one_is_skipped() -> None:
    outbox = Outbox(VirtualClock())
    put(outbox, State.RECEIVED)
    put(outbox, State.APPLIED)
    put(outbox, State.APPLIED)
    assert outbox.newest is not None
    assert (outbox.newest.n, outbox.reported_state(DELIVERY)) == (2, State.APPLIED)
    assert outbox.boot != Outbox(VirtualClock()).boot


async def test_a_report_waits_for_a_session_and_is_sent_again_in_the_next_one() -> None:
    clock, server, outbox = VirtualClock(), Server(), Outbox(VirtualClock())
    retries = Retries(Backoff(1, 8), random.Random(1))
    sending = asyncio.create_task(send_reports(outbox, cast("Client", server), retries, clock))
    put(outbox, State.VERIFIED)
    await clock.advance(0)
    assert server.reports == []
    for session in (WatchSession(7, 2), WatchSession(9, 2)):
        outbox.watch_opened(session)
        await clock.advance(0)
    sending.cancel()
    assert [(each.session, each.n) for each in server.reports if isinstance(each, Report)] == [(7, 1), (9, 1)]


async def test_a_server_that_reads_only_format_1_receives_format_1() -> None:
    clock, server, outbox = VirtualClock(), Server(), Outbox(VirtualClock())
    sending = asyncio.create_task(
        send_reports(outbox, cast("Client", server), Retries(Backoff(1, 8), random.Random(1)), clock)
    )
    put(outbox, State.VERIFIED)
    outbox.watch_opened(WatchSession(0, 1))
    await clock.advance(0)
    sending.cancel()
    assert [(each.boot, each.n) for each in server.reports if isinstance(each, Report1)] == [(outbox.boot, 1)]
