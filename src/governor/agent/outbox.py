"""Reports on their way out: the newest one is sent until the server has it; applying never waits for that."""

import asyncio
import secrets
from typing import Final

import governor
from governor.agent.verification.findings import Findings
from governor.client import Client
from governor.domain.bundles import Delivery
from governor.domain.reports import Report, State, overall
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Retries
from governor.process.telemetry import logging

_REFUSED: Final = frozenset({Kind.INVALID, Kind.NOT_FOUND, Kind.EXISTS, Kind.CONFLICT, Kind.PRECONDITION})
"""Repeating a report that the server answered like this cannot help."""

_log = logging.get_logger(__name__)


class Outbox:
    """Holds the newest report and numbers them; ``boot`` tells this start of the agent from all others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.boot = secrets.token_hex(8)
        self._n = 0
        self._wanted = asyncio.Event()
        self.newest: Report | None = None

    def put(self, delivery: Delivery, found: Findings) -> None:
        """Have this reported, in place of anything older; what was said already is not said again."""
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
            boot=self.boot,
            n=self._n,
            time=self._clock.now(),
            agent=f"runtime-governor/{governor.__version__}",
            resources=found.resources,
            workloads=found.workloads,
        )
        self._wanted.set()

    async def next(self) -> Report:
        """The newest report, once there is one that was not taken yet."""
        await self._wanted.wait()
        self._wanted.clear()
        assert self.newest is not None  # noqa: S101 - only ``put`` sets the event
        return self.newest

    def resend(self) -> None:
        """Have the newest report taken once more."""
        self._wanted.set()

    def reported_state(self, delivery: Delivery) -> State | None:
        """What was reported last on this delivery, if anything was."""
        newest = self.newest
        if newest is None or (newest.sequence, newest.attempt) != (delivery.sequence, delivery.attempt):
            return None
        return overall(newest)


async def send_reports(outbox: Outbox, client: Client, retries: Retries, clock: Clock) -> None:
    """Send until cancelled. What cannot be sent is tried again, unless something newer is there by then."""
    while True:
        report = await outbox.next()
        try:
            await client.report(report)
            retries.reset()
        except GovernorError as error:
            if error.kind in _REFUSED:
                _log.error("the server refused a report", error=str(error), sequence=report.sequence)
                continue
            _log.warning("cannot report", error=str(error), failures=retries.failures + 1)
            await clock.sleep(retries.next_delay_s())
            outbox.resend()
