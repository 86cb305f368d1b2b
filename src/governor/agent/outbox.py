"""Outgoing reports: the newest one is sent until the server accepts it. Applying never waits for it.

A report that is still true is not sent again; a check confirms it, so that the server can show its age.
"""

import asyncio
import secrets
from typing import Final

import msgspec

import governor
from governor.agent.platform import InventorySource
from governor.agent.verification.findings import Findings
from governor.client import Client, WatchSession
from governor.domain.bundles import Delivery
from governor.domain.inventories import Inventory
from governor.domain.reports import Check, Report, State, overall
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Retries
from governor.process.telemetry import logging
from governor.wire.reports import Report1, to_format_1

_PERMANENT: Final = frozenset({Kind.INVALID, Kind.NOT_FOUND, Kind.EXISTS, Kind.CONFLICT, Kind.PRECONDITION})
"""Errors on which the same report is not sent again."""

_INVENTORY_S: Final = 60.0
"""How often the inventory is read."""
_UNSUPPORTED_S: Final = 3600.0
"""After how long an older server, which takes no inventory, is asked again."""

_log = logging.get_logger(__name__)


class Outbox:
    """The newest report, numbered. ``boot`` identifies this process of the agent to the server.

    Nothing is sent before the server has accepted a watch of this process: its session orders the reports.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.boot = secrets.token_hex(8)
        self._n = 0
        self._pending = asyncio.Event()
        self._session: WatchSession | None = None
        self._accepted: Report | None = None
        self._checked = asyncio.Event()
        self._takes_checks = False
        self._has_session = asyncio.Event()
        self.newest: Report | None = None

    def watch_opened(self, session: WatchSession) -> None:
        """Send reports in this session and format from now on.

        The newest report is sent again: the server may have been restored to a state in which it did not have it.
        """
        self._session = session
        self._takes_checks = session.report_format > 1
        if self.newest is not None:
            self.resend()
        self._has_session.set()

    async def session(self) -> int:
        """Wait for a session and return its number."""
        await self._has_session.wait()
        assert self._session is not None  # noqa: S101 - set with the event
        return self._session.number

    def put(self, delivery: Delivery, found: Findings) -> bool:
        """Queue a report and return True; if the findings are unchanged, queue a check and return False."""
        old = self.newest
        if old and self.reported_state(delivery) and found.equals(_findings(old)):
            self._checked.set()
            return False
        self._n += 1
        self.newest = Report(
            runtime=delivery.runtime,
            sequence=delivery.sequence,
            attempt=delivery.attempt,
            digest=delivery.digest,
            session=0,
            n=self._n,
            time=self._clock.now(),
            agent=f"runtime-governor/{governor.__version__}",
            resources=found.resources,
            workloads=found.workloads,
            restraint=found.restraint,
        )
        self._pending.set()
        return True

    async def next(self) -> Report | Report1:
        """Wait for a session and a report that was not returned yet; return it as the server reads it."""
        await self._has_session.wait()
        await self._pending.wait()
        self._pending.clear()
        assert self.newest is not None and self._session is not None  # noqa: PT018, S101 - set with the events
        report = msgspec.structs.replace(self.newest, session=self._session.number)
        return to_format_1(report, self.boot) if self._session.report_format == 1 else report

    def accepted(self, report: Report | Report1) -> None:
        """Record that the server has accepted a report."""
        self._accepted = report if isinstance(report, Report) else None

    def resend(self) -> None:
        """Make ``next`` return the newest report again."""
        self._pending.set()

    async def next_check(self) -> tuple[str, Check]:
        """Wait until a report that the server has accepted is found to be still true; return its runtime and key."""
        while True:
            await self._checked.wait()
            self._checked.clear()
            report = self._accepted
            if self._takes_checks and report is not None and self.newest is not None and report.n == self.newest.n:
                return report.runtime, report.check

    def reported_state(self, delivery: Delivery) -> State | None:
        """Return the state last reported for a delivery, or None."""
        newest = self.newest
        if newest is None or (newest.sequence, newest.attempt) != (delivery.sequence, delivery.attempt):
            return None
        return overall(newest)


def _findings(report: Report) -> Findings:
    return Findings(report.resources, report.workloads, restraint=report.restraint)


async def send_reports(outbox: Outbox, client: Client, retries: Retries, clock: Clock) -> None:
    """Send reports until cancelled. A failed one is retried unless a newer report has replaced it."""
    while True:
        report = await outbox.next()
        try:
            await client.report(report)
            outbox.accepted(report)
            retries.reset()
        except GovernorError as error:
            if error.kind in _PERMANENT:
                _log.error("report rejected", error=str(error), sequence=report.sequence)
                continue
            _log.warning("cannot send report", error=str(error), failures=retries.failures + 1)
            await clock.sleep(retries.next_delay_s())
            outbox.resend()


async def send_checks(outbox: Outbox, client: Client) -> None:
    """Send checks until cancelled. A failed one is not sent again: the next one replaces it."""
    while True:
        runtime, check = await outbox.next_check()
        try:
            await client.check(runtime, check)
        except GovernorError as error:
            _log.info("cannot send check", error=str(error), sequence=check.sequence)


async def send_inventory(source: InventorySource, runtime: str, outbox: Outbox, client: Client, clock: Clock) -> None:
    """Send the inventory until cancelled, whenever it has changed, and once in each session."""
    sent: tuple[int, Inventory] | None = None
    while True:
        session, pause_s = await outbox.session(), _INVENTORY_S
        try:
            found = session, await source.read()
            if found != sent and not await _put_inventory(runtime, found[1], client):
                pause_s = _UNSUPPORTED_S
            sent = found
        except GovernorError as error:
            _log.info("cannot send inventory", error=str(error))
        await clock.sleep(pause_s)


async def _put_inventory(runtime: str, inventory: Inventory, client: Client) -> bool:
    """Send an inventory; return False if the server is older and takes none."""
    try:
        await client.put_inventory(runtime, inventory)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return False
    return True
