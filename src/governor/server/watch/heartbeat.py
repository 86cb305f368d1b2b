"""Keep-alives of all open streams, spread evenly over the interval, and the end of streams that are not read."""

import asyncio
import math
from typing import Final

from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.server.metrics import Metrics
from governor.server.watch.hub import Hub
from governor.wire.events import KEEPALIVE, with_spread

_STEP_S: Final = 0.5
"""Streams of one step are written together."""

_RECONNECTS_PER_S: Final = 1000
"""Fewer agents than this may all reconnect at once."""

_log = logging.get_logger(__name__)


def spread_s(watches: int) -> float:
    """Return the time over which this many agents should spread their reconnects."""
    return 0.0 if watches < _RECONNECTS_PER_S else watches / _RECONNECTS_PER_S


class Heartbeat:
    """Writes a keep-alive to each stream once per interval; aborts those that are not read for ``stall_s``."""

    def __init__(self, hub: Hub, clock: Clock, metrics: Metrics, *, interval_s: float, stall_s: float) -> None:
        self._hub = hub
        self._clock = clock
        self._metrics = metrics
        self._interval_s = interval_s
        self._stall_s = stall_s

    async def run(self) -> None:
        """Write keep-alives until cancelled."""
        steps = max(1, math.ceil(self._interval_s / _STEP_S))
        while True:
            streams = self._hub.streams()
            for step in range(steps):
                # Real time: a keep-alive is for the network.
                await asyncio.sleep(self._interval_s / steps)
                chunk = with_spread(KEEPALIVE, spread_s(self._hub.open_watches()))
                for stream in streams[step::steps]:
                    if not stream.keep_alive(chunk, self._clock.monotonic(), self._stall_s):
                        self._metrics.stalled.inc()
                        _log.info("stream aborted: the client stopped reading")
