"""Regular work of the server that no request causes: pruning, and counting what agents have not confirmed."""

from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from governor.errors import GovernorError
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.server.metrics import AGES, Metrics
from governor.server.store.bundles import pending_members
from governor.server.store.retention import prune
from governor.server.store.runtime_states import count_pending
from governor.server.store.sqlite import Store

PRUNE_INTERVAL_S: Final = 3600.0
COUNT_INTERVAL_S: Final = 15.0
_PAUSE_S: Final = 0.1
"""Between two transactions, so that pruning does not delay other writes."""

_log = logging.get_logger(__name__)


class Pruner:
    """Removes superseded deliveries every hour."""

    def __init__(self, store: Store, clock: Clock, keep: int) -> None:
        self._store = store
        self._clock = clock
        self._keep = keep

    async def run(self) -> None:
        """Prune until cancelled; a failure is repeated with the next interval."""
        while True:
            await self._clock.sleep(PRUNE_INTERVAL_S)
            try:
                await self.prune()
            except GovernorError as error:
                _log.warning("cannot prune", error=str(error))

    async def prune(self) -> int:
        """Remove what is not kept, in transactions of a few runtimes each; return how many deliveries."""
        total = 0
        while (removed := await self._store.write(lambda connection: prune(connection, self._keep))) is not None:
            total += removed
            await self._clock.sleep(_PAUSE_S)
        if total:
            _log.info("superseded deliveries pruned", deliveries=total, kept=self._keep)
        return total


class PendingCount:
    """Counts the deliveries that no agent has acknowledged, by age, and those that are not issued yet."""

    def __init__(self, store: Store, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics

    async def run(self) -> None:
        """Count until cancelled."""
        while True:
            try:
                await self.count()
            except GovernorError as error:
                _log.warning("cannot count pending deliveries", error=str(error))
            await self._clock.sleep(COUNT_INTERVAL_S)

    async def count(self) -> None:
        """Set the metrics."""
        now = self._clock.now()
        counts, unissued = await self._store.read(lambda connection: _count(connection, now))
        for age, count in zip(AGES, counts, strict=True):
            self._metrics.pending.labels(age).set(count)
        self._metrics.unissued.set(unissued)


def _count(connection: sa.Connection, now: datetime) -> tuple[list[int], int]:
    limits = [now - timedelta(seconds=seconds) for seconds in AGES.values()]
    older = [count_pending(connection, limit) for limit in limits]
    counts = [older[number] - (older[number + 1] if number + 1 < len(older) else 0) for number in range(len(older))]
    return counts, pending_members(connection)
