"""Delivers notifications to the sinks of a cluster, each once as far as this process knows."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from governor.errors import GovernorError
from governor.process.reconcile.reconciler import Done, Failed, Outcome, Requeue
from governor.process.telemetry import logging
from governor.reconciler.kinds.failure import Sink
from governor.reconciler.notifications.notification import Notification
from governor.reconciler.notifications.webhook import Endpoint, Webhooks

RATE_RECHECK_S: Final = 2.0

_log = logging.get_logger(__name__)


class Deliveries:
    """Which sinks have received which notification, until a status says so."""

    def __init__(self, webhooks: Webhooks, read: Callable[[Sink], Awaitable[Endpoint]]) -> None:
        self._webhooks = webhooks
        self._read = read
        self._received: dict[str, frozenset[str]] = {}

    def received(self, notification: str) -> frozenset[str]:
        """Return the names of the sinks that have received the notification of this id."""
        return self._received.get(notification, frozenset())

    def forget(self, notification: str) -> None:
        """Forget a notification, because the status of its object names its sinks."""
        self._received.pop(notification, None)

    async def deliver(self, notification: Notification, sinks: Iterable[Sink], notified: Iterable[str]) -> Outcome:
        """Send a notification to all sinks that have not received it; one that fails does not delay another."""
        known = {*notified, *self.received(notification.id)}
        errors = list[GovernorError]()
        is_limited = False
        for sink in sinks:
            if sink.name in known:
                continue
            try:
                is_sent = await self._send(sink, notification)
            except GovernorError as error:
                text = f"sink {sink.name}: {error.message}"
                errors.append(GovernorError(error.kind, error.code, text))
                continue
            is_limited = is_limited or not is_sent
            if is_sent:
                self._received[notification.id] = self.received(notification.id) | {sink.name}
        if errors:
            return Failed(errors[0])
        return Requeue(RATE_RECHECK_S) if is_limited else Done()

    async def _send(self, sink: Sink, notification: Notification) -> bool:
        """Send a notification to a sink; return False if the rate limit does not permit it now."""
        endpoint = await self._read(sink)
        if not self._webhooks.is_allowed(endpoint):
            return False
        await self._webhooks.send(sink, endpoint, notification)
        _log.info(
            "notification delivered",
            sink=sink.name,
            notification=notification.id,
            cluster=notification.cluster,
            module=notification.module,
        )
        return True
