"""The agent's connection to a real server: backoff."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from governor.agent.enrolment import load_or_create_key
from governor.agent.inbox import Inbox, watch
from governor.agent.main import open_agent
from governor.agent.settings import Settings
from governor.agent.storage import Membership, Storage
from governor.client import Client
from governor.errors import GovernorError, Kind
from governor.process.clock import SystemClock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry.instruments import Registry
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.rest import SignedDelivery, TokenRequest
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

WITHIN_S = 30
FAILURES = 4


async def join_token(bed: ServerBed) -> Secret:
    """Create a join token for the runtime."""
    async with bed.client() as admin:
        return Secret((await admin.create_token(TokenRequest(runtime="r1"))).text)


async def configure(bed: ServerBed, host: str) -> None:
    """Create the next delivery."""
    await bed.apply(runtime("r1"), profile("orders", component("store", redisHost=host)))


@asynccontextmanager
async def connected(state_dir: Path, token: Secret | None) -> AsyncIterator[Inbox]:
    """Run the connection of an agent in a state directory, as each start of the program does."""
    settings = Settings(state_dir=state_dir, daprd=Path("/bin/false"), join_token=token)
    async with open_agent(settings, SystemClock(), Registry()) as agent:
        connection = asyncio.create_task(agent.connection.run())
        try:
            yield agent.inbox
        finally:
            connection.cancel()
            await asyncio.gather(connection, return_exceptions=True)


def has(inbox: Inbox, sequence: int, key: str = "") -> Callable[[], Awaitable[bool]]:
    """Return a condition: the newest delivery has this sequence and, if given, was signed by this key."""

    async def condition() -> bool:
        is_newest = inbox.newest is not None and inbox.newest.sequence == sequence
        return is_newest and (not key or (inbox.signed is not None and inbox.signed.key_id == key))

    return condition


async def received(inbox: Inbox, sequence: int, key: str = "") -> None:
    await until(has(inbox, sequence, key), within_s=WITHIN_S)


def membership(state_dir: Path) -> Membership:
    stored = Storage(state_dir).membership()
    assert stored is not None
    return stored


class CountingClock(SystemClock):
    """Records the failures in a row before each delay, and does not wait."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self.failures: list[int] = []

    async def sleep(self, seconds: float) -> None:
        self.failures.append(self._retries.failures)
        await asyncio.sleep(0)


class FullStorage(Storage):
    """A state directory whose disk is full for the first deliveries."""

    left = FAILURES

    def save_newest(self, delivery: SignedDelivery) -> None:
        if self.left:
            self.left -= 1
            raise GovernorError(Kind.EXHAUSTED, "disk-full", "no space left")
        super().save_newest(delivery)


async def test_only_a_stored_delivery_resets_the_reconnect_backoff(tmp_path: Path) -> None:
    async with running(tmp_path / "server") as bed:
        await configure(bed, "a")
        async with connected(tmp_path / "agent", await join_token(bed)) as inbox:
            await received(inbox, 1)
        joined = membership(tmp_path / "agent")
        await configure(bed, "b")
        key = load_or_create_key(tmp_path / "agent" / "identity.key")
        retries = Retries(Backoff(0.1, 1.0), random.Random(1))
        clock = CountingClock(retries)
        inbox = Inbox(FullStorage(tmp_path / "agent"), clock, lambda: None)

        async with Client(bed.url, lambda: credentials.mint("r1", key, clock.now())) as client:
            watching = asyncio.create_task(watch(inbox, client, joined, retries, clock, "boot"))
            await received(inbox, 2)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    assert clock.failures == list(range(1, FAILURES + 1))
    assert retries.failures == 0
