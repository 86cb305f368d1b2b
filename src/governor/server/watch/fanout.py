"""Sends the deliveries of a batch to the idle watches of their runtimes, without waking their tasks.

The batch is signed once, each body is encoded once, and all writes to sockets happen in one iteration of the event
loop. A watch that is busy, or whose agent needs something else, is woken and reads the newest delivery itself.
"""

from governor.domain.bundles import Delivery
from governor.server.metrics import Metrics
from governor.server.watch.hub import Hub, Stream
from governor.server.watch.signer import DeliverySigner
from governor.wire.deliveries import FORMATS


class Fanout:
    """Sends deliveries that were just issued."""

    def __init__(self, hub: Hub, signer: DeliverySigner, metrics: Metrics) -> None:
        self._hub = hub
        self._signer = signer
        self._metrics = metrics

    def send(self, issued: tuple[Delivery, ...]) -> None:
        """Send some deliveries to the agents that watch."""
        self._hub.announcements += 1
        with self._metrics.fanout_seconds.time():
            taken: list[tuple[Delivery, Stream]] = []
            for delivery in issued:
                for stream in self._hub.streams_of(delivery.runtime):
                    if stream.takes(delivery):
                        taken.append((delivery, stream))
                    else:
                        stream.wake()
            if taken:
                self._send([delivery for delivery, _ in taken], [stream for _, stream in taken])
        self._hub.followers.changed(delivery.runtime for delivery in issued)

    def _send(self, deliveries: list[Delivery], streams: list[Stream]) -> None:
        events = self._signer.events(deliveries, FORMATS[-1])
        for delivery, stream, parts in zip(deliveries, streams, events, strict=True):
            stream.send(delivery, parts)
