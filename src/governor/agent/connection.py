"""The agent's connection to its server: joins once, then watches and reports concurrently.

The server may be unreachable for any length of time; the sidecars do not depend on it.
"""

import asyncio
import random
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.agent.enrolment import credential, join
from governor.agent.inbox import Inbox, watch
from governor.agent.outbox import Outbox, send_checks, send_reports
from governor.agent.storage import Membership, Storage
from governor.client import Client
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry import logging
from governor.wire.credentials import JoinToken

_BACKOFF: Final = Backoff(initial_s=0.2, max_s=30.0)
_RETRYABLE: Final = frozenset({Kind.UNAVAILABLE, Kind.DEADLINE, Kind.EXHAUSTED, Kind.INTERNAL})

_log = logging.get_logger(__name__)


class Connection:
    """The connection of one agent; joins with ``token`` unless it has a membership."""

    def __init__(
        self,
        membership: Membership | None,
        token: JoinToken | None,
        key: Ed25519PrivateKey,
        storage: Storage,
        inbox: Inbox,
        outbox: Outbox,
        clock: Clock,
    ) -> None:
        self._membership = membership
        self._token = token
        self._key = key
        self._storage = storage
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._rng = random.Random()  # noqa: S311 - jitter, not security

    async def run(self) -> None:
        """Stay connected until cancelled. Raise if the server rejects the join token."""
        membership = self._membership or await self._join()
        sign = credential(membership, self._key, self._clock)
        client = Client(membership.server, sign, ca_fingerprint=membership.ca)
        async with client, asyncio.TaskGroup() as group:
            group.create_task(watch(self._inbox, client, membership, self._retries(), self._clock, self._outbox.boot))
            group.create_task(send_reports(self._outbox, client, self._retries(), self._clock))
            group.create_task(send_checks(self._outbox, client))

    async def _join(self) -> Membership:
        assert self._token is not None  # noqa: S101 - ``check_token`` requires a token without a membership
        retries = self._retries()
        while True:
            try:
                membership = await join(self._token, self._key, self._storage)
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
