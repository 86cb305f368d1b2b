"""Outgoing reports: the newest one is sent until the server accepts it. Applying never waits for it."""

import asyncio
import secrets
from typing import Final

import msgspec

import governor
from governor.agent.verification.findings import Findings
from governor.client import Client, WatchSession
from governor.domain.bundles import Delivery
from governor.domain.reports import Report, State, overall
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Retries
from governor.process.telemetry import logging
from governor.wire.reports import Report1, to_format_1

_PERMANENT: Final = frozenset({Kind.INVALID, Kind.NOT_FOUND, Kind.EXISTS, Kind.CONFLICT, Kind.PRECONDITION})
"""Errors on which the same report is not sent again."""

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
        self._has_session = asyncio.Event()
        self.newest: Report | None = None

    def watch_opened(self, session: WatchSession) -> None:
        """Send reports in this session and format from now on.

        The newest report is sent again: the server may have been restored to a state in which it did not have it.
        """
        self._session = session
        if self.newest is not None:
            self.resend()
        self._has_session.set()

    def put(self, delivery: Delivery, found: Findings) -> None:
        """Replace the report to send, unless its content is unchanged."""
        old = self.newest
        if (
            old
            and self.reported_state(delivery)
            and (old.resources, old.workloads) == (found.resources, found.workloads)
        ):
            return
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
        )
        self._pending.set()

    async def next(self) -> Report | Report1:
        """Wait for a session and a report that was not returned yet; return it as the server reads it."""
        await self._has_session.wait()
        await self._pending.wait()
        self._pending.clear()
        assert self.newest is not None and self._session is not None  # noqa: PT018, S101 - set with the events
        report = msgspec.structs.replace(self.newest, session=self._session.number)
        return to_format_1(report, self.boot) if self._session.report_format == 1 else report

    def resend(self) -> None:
        """Make ``next`` return the newest report again."""
        self._pending.set()

    def reported_state(self, delivery: Delivery) -> State | None:
        """Return the state last reported for a delivery, or None."""
        newest = self.newest
        if newest is None or (newest.sequence, newest.attempt) != (delivery.sequence, delivery.attempt):
            return None
        return overall(newest)


async def send_reports(outbox: Outbox, client: Client, retries: Retries, clock: Clock) -> None:
    """Send reports until cancelled. A failed one is retried unless a newer report has replaced it."""
    while True:
        report = await outbox.next()
        try:
            await client.report(report)
            retries.reset()
        except GovernorError as error:
            if error.kind in _PERMANENT:
                _log.error("report rejected", error=str(error), sequence=report.sequence)
                continue
            _log.warning("cannot send report", error=str(error), failures=retries.failures + 1)
            await clock.sleep(retries.next_delay_s())
            outbox.resend()
