"""Deliveries on their way in: one watch, reconnected with growing waits.

A delivery is on disk before anyone acts on it.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from governor.agent.enrolment import verify_delivery
from governor.agent.storage import Membership, Storage
from governor.client import Client
from governor.domain.bundles import Delivery
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Retries
from governor.process.telemetry import logging
from governor.wire.rest import SignedDelivery

_HELD_S: Final = 30.0
_UNBELIEVABLE: Final = frozenset({Kind.DENIED, Kind.CONFLICT, Kind.UNIMPLEMENTED})
"""Asking for the same delivery again would give the same again; anything else, such as a full disk, may pass."""

_log = logging.get_logger(__name__)


class Inbox:
    """The newest delivery that was believed; older ones and those of others never replace it."""

    def __init__(self, storage: Storage, clock: Clock, on_delivery: Callable[[], None]) -> None:
        self._storage = storage
        self._clock = clock
        self._on_delivery = on_delivery
        self.newest: Delivery | None = None
        self.signed: SignedDelivery | None = None
        self.received_at = clock.now()
        self.unstored: tuple[Delivery, GovernorError] | None = None
        """A newer delivery that could not be remembered, and why; it is asked for again."""
        self._conflict = ""

    def watch_opened(self) -> None:
        """The server took the watch."""
        self._conflict = ""

    def watch_failed(self, error: GovernorError) -> None:
        """The watch ended; remember it if that is because another agent has this agent's identity."""
        if error.code == "runtime-in-use":
            self._conflict = error.message

    def identity_conflict(self) -> str:
        """Which other agent speaks as this runtime, or nothing; fits ``Checks.ready``."""
        return self._conflict

    def restore(self, membership: Membership | None) -> None:
        """Take up what was received before the agent started. Blocking."""
        signed = self._storage.newest()
        if signed is not None and membership is not None:
            self.newest, self.signed = verify_delivery(signed, membership), signed

    async def accept(self, signed: SignedDelivery, membership: Membership) -> None:
        """Believe, remember and announce a delivery; refuses what is not newer than the one it has."""
        delivery = verify_delivery(signed, membership)
        if self.newest is not None and _age(delivery) <= _age(self.newest):
            message = f"delivery {_age(delivery)} is not newer than {_age(self.newest)}, which the agent has"
            raise GovernorError(Kind.CONFLICT, "delivery-old", message)
        received_at = self._clock.now()
        try:
            await asyncio.to_thread(self._storage.save_newest, signed)
        except GovernorError as error:
            self.unstored = delivery, error
            self._on_delivery()
            raise
        self.newest, self.signed, self.received_at, self.unstored = delivery, signed, received_at, None
        _log.info("delivery received", sequence=delivery.sequence, attempt=delivery.attempt, digest=delivery.digest)
        self._on_delivery()


async def watch(
    inbox: Inbox, client: Client, membership: Membership, retries: Retries, clock: Clock, boot: str
) -> None:
    """Hold a watch open until cancelled; waits grow with each failure until something came or a watch held for long."""
    while True:
        began = clock.monotonic()
        try:
            after = inbox.newest.sequence if inbox.newest else 0
            runtime = membership.enrolment.runtime
            stream = client.watch(runtime, after, boot=boot, host=socket.gethostname(), on_open=inbox.watch_opened)
            async with aclosing(stream) as deliveries:
                async for signed in deliveries:
                    retries.reset()
                    await _accept(inbox, signed, membership)
        except GovernorError as error:
            if clock.monotonic() - began > _HELD_S:
                retries.reset()
            inbox.watch_failed(error)
            _log.warning("the watch ended", error=str(error), failures=retries.failures + 1)
        await clock.sleep(retries.next_delay_s())


async def _accept(inbox: Inbox, signed: SignedDelivery, membership: Membership) -> None:
    try:
        await inbox.accept(signed, membership)
    except GovernorError as error:
        if error.kind not in _UNBELIEVABLE:
            raise
        _log.error("a delivery was refused", error=str(error), code=error.code)


def _age(delivery: Delivery) -> tuple[int, int]:
    return delivery.sequence, delivery.attempt
