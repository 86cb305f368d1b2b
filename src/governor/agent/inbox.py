"""Incoming deliveries: one watch, reconnected with backoff.

A delivery is stored before it is acted on.
"""

import random
import socket
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from governor.agent.enrolment import verify_delivery, verify_stored
from governor.agent.state.agent_state import AgentState
from governor.agent.state.records import Membership
from governor.client import Client, WatchSession
from governor.domain.bundles import Delivery, DeliveryPosition
from governor.domain.documents import Platform
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Retries
from governor.process.telemetry import logging
from governor.wire.deliveries import SignedDelivery
from governor.wire.formats import PLATFORM_MISMATCH

_STABLE_S: Final = 30.0
"""A watch that was open longer than this resets the backoff."""
_PERMANENT: Final = frozenset({Kind.DENIED, Kind.CONFLICT, Kind.UNIMPLEMENTED})
"""Rejections that a retry cannot change; anything else may be temporary, and so may any failure to store."""
_CONFLICTS: Final = frozenset({"runtime-in-use", PLATFORM_MISMATCH})

_log = logging.get_logger(__name__)


class Watcher(NamedTuple):
    """What the agent says about itself when it opens a watch: its process, its platform and its epoch."""

    boot: str
    platform: Platform
    epoch: Callable[[], int] = lambda: 0
    """Returns a number that increases with each process that takes over the agent's state."""


class Inbox:
    """The newest verified delivery. Older deliveries never replace it."""

    def __init__(
        self,
        state: AgentState,
        clock: Clock,
        on_delivery: Callable[[], None],
        on_session: Callable[[WatchSession], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._on_delivery = on_delivery
        self._on_session = on_session
        self.newest: Delivery | None = None
        self.signed: SignedDelivery | None = None
        self.received_at = clock.now()
        self.unstored: tuple[Delivery, GovernorError] | None = None
        """A newer delivery that could not be stored, with the error; the watch requests it again."""
        self._conflict = ""
        self._spread_s = 0.0
        self._rng = random.Random()  # noqa: S311 - jitter, not security

    def watch_opened(self, session: WatchSession) -> None:
        """Record the session of an accepted watch and clear the identity conflict."""
        self._conflict = ""
        # What could not be stored is sent again, unless the server has forgotten it.
        if self.unstored is not None:
            self.unstored = None
            self._on_delivery()
        self._on_session(session)

    def spread_changed(self, spread_s: float) -> None:
        """Record the time over which the server wants reconnects of its agents to be spread."""
        self._spread_s = spread_s

    def next_spread_s(self) -> float:
        """Return a random part of that time, by which the next reconnect is delayed; once for each watch."""
        spread_s, self._spread_s = self._spread_s, 0.0
        return self._rng.uniform(0, spread_s)

    def watch_failed(self, error: GovernorError) -> None:
        """Record the conflict if another agent uses this identity, or if it is for another platform."""
        if error.code in _CONFLICTS:
            self._conflict = error.message

    def identity_conflict(self) -> str:
        """Return why the server does not accept this agent as that of its runtime, or ``""``; fits ``Checks.ready``."""
        return self._conflict

    async def restore(self, membership: Membership | None) -> None:
        """Load the delivery that was stored before the agent started."""
        signed = await self._state.newest()
        if signed is not None and membership is not None:
            self.newest, self.signed = verify_stored(signed, membership), signed

    def position(self, membership: Membership) -> DeliveryPosition:
        """Return the position of the newest delivery, or none if it is not from the membership's server."""
        return self.newest.position if self.newest and self._is_from(membership) else DeliveryPosition()

    async def accept(self, signed: SignedDelivery, membership: Membership) -> None:
        """Verify, store and announce a delivery. Raise if it is not newer than the current one."""
        delivery = verify_delivery(signed, membership)
        if self.newest and self._is_from(membership) and _version(delivery) <= _version(self.newest):
            message = (
                f"delivery {_version(delivery)} is not newer than {_version(self.newest)}, which this agent already has"
            )
            raise GovernorError(Kind.CONFLICT, "delivery-old", message)
        received_at = self._clock.now()
        try:
            await self._state.save_newest(signed)
        except GovernorError as error:
            self.unstored = delivery, error
            self._on_delivery()
            raise
        self.newest, self.signed, self.received_at, self.unstored = delivery, signed, received_at, None
        _log.info("delivery received", sequence=delivery.sequence, attempt=delivery.attempt, digest=delivery.digest)
        self._on_delivery()

    def _is_from(self, membership: Membership) -> bool:
        """Return whether the newest delivery is from the membership's server: another one has its own sequences."""
        return self.signed is not None and self.signed.key_id == membership.enrolment.key_id


async def watch(
    inbox: Inbox, client: Client, membership: Membership, retries: Retries, clock: Clock, watcher: Watcher
) -> None:
    """Watch until cancelled. A stored delivery, or a watch that stayed open for long, resets the reconnect backoff."""
    while True:
        began = clock.monotonic()
        try:
            runtime, held = membership.enrolment.runtime, inbox.position(membership)
            stream = client.watch(
                runtime,
                held,
                boot=watcher.boot,
                host=socket.gethostname(),
                epoch=watcher.epoch(),
                platform=watcher.platform,
                on_open=inbox.watch_opened,
                on_spread=inbox.spread_changed,
            )
            async with aclosing(stream) as deliveries:
                async for signed in deliveries:
                    await _accept(inbox, signed, membership, retries)
        except GovernorError as error:
            if clock.monotonic() - began > _STABLE_S:
                retries.reset()
            inbox.watch_failed(error)
            _log.warning("watch closed", error=str(error), failures=retries.failures + 1)
        await clock.sleep(retries.next_delay_s() + inbox.next_spread_s())


async def _accept(inbox: Inbox, signed: SignedDelivery, membership: Membership, retries: Retries) -> None:
    try:
        await inbox.accept(signed, membership)
        retries.reset()
    except GovernorError as error:
        if error.kind not in _PERMANENT or inbox.unstored is not None:
            raise
        _log.error("delivery rejected", error=str(error), code=error.code)


def _version(delivery: Delivery) -> tuple[int, int]:
    return delivery.sequence, delivery.attempt
