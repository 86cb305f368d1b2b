"""Checks: sent instead of a report that says the same, and only to a server that knows them."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import cast

from governor.agent.outbox import Outbox, send_checks, send_reports
from governor.agent.verification.findings import Findings, uniform
from governor.client import Client, WatchSession
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.reports import Check, Evidence, Report, State, WorkloadRef
from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff, Retries

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DELIVERY = Delivery("r1", 3, 1, 1, "sha256:0", (), (), ApplyPolicy())


def found(state: State, minutes: int = 0, text: str = "seen") -> Findings:
    evidence = Evidence("sidecar app", NOW + timedelta(minutes=minutes), text)
    return uniform(
        state, [ResourceRef("Component", "default", "one")], {WorkloadRef("", "Sidecar", "app"): 1}, evidence
    )


class Server:
    """Records reports and checks, and answers checks with an error if told to."""

    def __init__(self, answer: Kind | None = None) -> None:
        self.answer = answer
        self.reports: list[int] = []
        self.checks: list[Check] = []

    async def report(self, report: Report) -> None:
        self.reports.append(report.n)

    async def check(self, runtime: str, check: Check) -> None:
        assert runtime == "r1"
        self.checks.append(check)
        if self.answer is not None:
            raise GovernorError(self.answer, "test", "test error")


class Bed:
    """An outbox and its two senders."""

    def __init__(self, server: Server, report_format: int = 2) -> None:
        self.clock = VirtualClock()
        self.outbox = Outbox(self.clock)
        self.outbox.watch_opened(WatchSession(7, report_format))
        client, retries = cast("Client", server), Retries(Backoff(1, 8), random.Random(1))
        self._tasks = [
            asyncio.create_task(send_reports(self.outbox, client, retries, self.clock)),
            asyncio.create_task(send_checks(self.outbox, client)),
        ]

    async def put(self, *each: Findings) -> None:
        for one in each:
            self.outbox.put(DELIVERY, one)
            await self.clock.advance(0)


async def test_findings_that_say_the_same_are_checked_and_not_reported_again() -> None:
    server = Server()
    bed = Bed(server)
    await bed.put(found(State.APPLIED), found(State.VERIFIED), found(State.VERIFIED, 5), found(State.VERIFIED, 10))
    assert server.reports == [1, 2]
    assert server.checks == [Check(3, 1, 7, 2)] * 2


async def test_other_evidence_is_a_new_report() -> None:
    server = Server()
    await Bed(server).put(found(State.VERIFIED), found(State.VERIFIED, text="seen in another process"))
    assert (server.reports, server.checks) == ([1, 2], [])


async def test_a_check_that_failed_is_replaced_by_the_next() -> None:
    server = Server(Kind.UNAVAILABLE)
    await Bed(server).put(*[found(State.VERIFIED)] * 4)
    assert len(server.checks) == 3


async def test_a_server_that_reads_only_format_1_gets_no_checks() -> None:
    server = Server()
    await Bed(server, report_format=1).put(*[found(State.VERIFIED)] * 3)
    assert (server.reports, server.checks) == ([1], [])
