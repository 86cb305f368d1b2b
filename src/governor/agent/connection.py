"""The agent's connection to its server: joins, then watches and reports concurrently.

A join token that is given to an agent with a membership replaces the membership if the server accepts it. Until then,
and if the server rejects it, the agent stays connected with the membership that it has.

The server may be unreachable for any length of time; the sidecars do not depend on it.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from governor.agent.enrolment import credential, discard, join, load_or_create_key
from governor.agent.inbox import Inbox, Watcher, watch
from governor.agent.outbox import Outbox, send_checks, send_inventory, send_reports
from governor.agent.platform import InventorySource
from governor.agent.state.agent_state import AgentState
from governor.agent.state.records import Membership
from governor.client import Client
from governor.domain.documents import Platform
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry import logging
from governor.wire.credentials import TOKEN_REJECTED, JoinToken

_BACKOFF: Final = Backoff(initial_s=0.2, max_s=30.0)
_RETRYABLE: Final = frozenset({Kind.UNAVAILABLE, Kind.DEADLINE, Kind.EXHAUSTED, Kind.INTERNAL})

_log = logging.get_logger(__name__)


class Connection:
    """The connection of one agent.

    ``token`` is a join token that the membership has not used yet. ``epoch`` is that of ``Home``.
    """

    def __init__(
        self,
        membership: Membership | None,
        token: JoinToken | None,
        state: AgentState,
        inbox: Inbox,
        outbox: Outbox,
        clock: Clock,
        platform: Platform,
        *,
        epoch: Callable[[], int] = lambda: 0,
        inventory: InventorySource | None = None,
    ) -> None:
        self._membership = membership
        self._token = token
        self._state = state
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._platform = platform
        self._epoch = epoch
        self._inventory = inventory
        self._rng = random.Random()  # noqa: S311 - jitter, not security

    async def run(self) -> None:
        """Stay connected until cancelled. Raise if the server rejects the token of an agent without a membership."""
        membership, token = self._membership, self._token
        if membership is None:
            assert token is not None  # noqa: S101 - ``check_token`` requires a token without a membership
            membership, token = await self._join(token, None), None
        if token is not None:
            membership = await self._connect_until_rejoined(membership, token)
        await self._connect(membership)

    async def _connect_until_rejoined(self, membership: Membership, token: JoinToken) -> Membership:
        """Use the membership until the token has replaced it, and return the new one."""
        async with asyncio.TaskGroup() as group:
            connected = group.create_task(self._connect(membership))
            replaced = await self._rejoin(token, membership)
            connected.cancel()
        if self._outbox.newest is not None:
            # The cancelled task may have been sending it.
            self._outbox.resend()
        return replaced

    async def _connect(self, membership: Membership) -> None:
        key = await load_or_create_key(self._state, membership.key)
        sign = credential(membership, key, self._clock)
        client = Client(membership.server, sign, ca_fingerprint=membership.ca)
        async with client, asyncio.TaskGroup() as group:
            watcher = Watcher(self._outbox.boot, self._platform, self._epoch)
            group.create_task(watch(self._inbox, client, membership, self._retries(), self._clock, watcher))
            group.create_task(send_reports(self._outbox, client, self._retries(), self._clock))
            group.create_task(send_checks(self._outbox, client))
            if self._inventory is not None:
                runtime = membership.enrolment.runtime
                group.create_task(send_inventory(self._inventory, runtime, self._outbox, client, self._clock))

    async def _rejoin(self, token: JoinToken, membership: Membership) -> Membership:
        """Replace the membership; never return if the server rejects the token."""
        try:
            return await self._join(token, membership)
        except GovernorError as error:
            is_rejected = error.code == TOKEN_REJECTED
            event = "join token rejected" if is_rejected else "cannot join again"
            _log.warning(event + "; the membership is kept", error=str(error), server=token.server)
            if is_rejected:
                await self._discard(token, membership)
        never: asyncio.Future[Membership] = asyncio.get_running_loop().create_future()
        return await never

    async def _discard(self, token: JoinToken, membership: Membership) -> None:
        try:
            await discard(token, membership, self._state)
        except GovernorError as error:
            # The next start tries the token again, and it is rejected again.
            _log.warning("cannot record the rejected join token", error=str(error))

    async def _join(self, token: JoinToken, old: Membership | None) -> Membership:
        retries = self._retries()
        while True:
            try:
                membership = await join(token, old, self._state, self._platform)
            except GovernorError as error:
                if error.kind not in _RETRYABLE:
                    raise
                _log.warning("cannot join", error=str(error), failures=retries.failures + 1)
                await self._clock.sleep(retries.next_delay_s())
            else:
                _log.info("joined", server=membership.server, runtime=membership.enrolment.runtime)
                return membership

    def _retries(self) -> Retries:
        return Retries(_BACKOFF, self._rng)
