"""Sends the deliveries of a batch to the idle watches of their runtimes, without waking their tasks.

The batch is signed once and each body is encoded once. Writing to the sockets is spread over several iterations of the
event loop, so that a request waits only for a part of it. A watch that is busy, or whose agent needs something else, is
woken and reads the newest delivery itself.
"""

import asyncio
import time
from typing import Final

from governor.domain.bundles import Delivery
from governor.server.metrics import Metrics
from governor.server.watch.hub import Hub
from governor.server.watch.signer import DeliverySigner, SignedEvents
from governor.wire.deliveries import FORMATS

AT_ONCE: Final = 100
"""Deliveries that are written in one iteration of the event loop."""


class Fanout:
    """Sends deliveries that were just issued."""

    def __init__(self, hub: Hub, signer: DeliverySigner, metrics: Metrics) -> None:
        self._hub = hub
        self._signer = signer
        self._metrics = metrics

    def send(self, issued: tuple[Delivery, ...]) -> None:
        """Send some deliveries to the agents that watch."""
        self._hub.announcements += 1
        began_s = time.perf_counter()
        taken = [delivery for delivery in issued if self._is_taken(delivery)]
        if taken:
            self._write(self._signer.events(taken, FORMATS[-1]), 0, began_s)
        self._hub.followers.changed(delivery.runtime for delivery in issued)

    def _is_taken(self, delivery: Delivery) -> bool:
        """Return whether a watch takes a delivery; wake those that do not."""
        is_taken = False
        for stream in self._hub.streams_of(delivery.runtime):
            if stream.takes(delivery):
                is_taken = True
            else:
                stream.wake()
        return is_taken

    def _write(self, events: SignedEvents, start: int, began_s: float) -> None:
        """Write the next events, and the others later."""
        end = min(start + AT_ONCE, len(events))
        for number in range(start, end):
            delivery = events.deliveries[number]
            for stream in self._hub.streams_of(delivery.runtime):
                # A later delivery may have been sent meanwhile.
                if stream.takes(delivery):
                    stream.send(delivery, events[number])
                else:
                    stream.wake()
        if end < len(events):
            asyncio.get_running_loop().call_soon(self._write, events, end, began_s)
        else:
            self._metrics.fanout_seconds.observe(time.perf_counter() - began_s)
