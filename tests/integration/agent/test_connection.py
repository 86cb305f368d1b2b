"""The agent's connection to a real server: backoff, and joining again without losing the state directory."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from governor.agent.enrolment import load_or_create_key
from governor.agent.inbox import Inbox, Watcher, watch
from governor.agent.main import open_agent
from governor.agent.settings import Settings
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.state.records import Membership
from governor.client import Client
from governor.domain.documents import Platform
from governor.errors import GovernorError, Kind
from governor.process.clock import SystemClock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry.instruments import Registry
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.deliveries import SignedDelivery
from governor.wire.rest import TokenRequest
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


def in_files(state_dir: Path) -> AgentState:
    return AgentState(FileBlobs(state_dir))


async def membership(state_dir: Path) -> Membership:
    stored = await in_files(state_dir).membership()
    assert stored is not None
    return stored


def keys(state_dir: Path) -> list[str]:
    return sorted(path.name for path in state_dir.glob("*.key"))


class CountingClock(SystemClock):
    """Records the failures in a row before each delay, and does not wait."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self.failures: list[int] = []

    async def sleep(self, seconds: float) -> None:
        self.failures.append(self._retries.failures)
        await asyncio.sleep(0)


class FailingState(AgentState):
    """A state that cannot store the first deliveries."""

    left = FAILURES

    def __init__(self, state_dir: Path, kind: Kind) -> None:
        super().__init__(FileBlobs(state_dir))
        self._kind = kind

    async def save_newest(self, delivery: SignedDelivery) -> None:
        if self.left:
            self.left -= 1
            raise GovernorError(self._kind, "not-stored", "not stored")
        await super().save_newest(delivery)


@pytest.mark.parametrize("kind", [Kind.EXHAUSTED, Kind.CONFLICT, Kind.DENIED])
async def test_only_a_stored_delivery_resets_the_reconnect_backoff(tmp_path: Path, kind: Kind) -> None:
    async with running(tmp_path / "server") as bed:
        await configure(bed, "a")
        async with connected(tmp_path / "agent", await join_token(bed)) as inbox:
            await received(inbox, 1)
        joined = await membership(tmp_path / "agent")
        await configure(bed, "b")
        key = await load_or_create_key(in_files(tmp_path / "agent"), "identity.key")
        retries = Retries(Backoff(0.1, 1.0), random.Random(1))
        clock = CountingClock(retries)
        inbox = Inbox(FailingState(tmp_path / "agent", kind), clock, lambda: None, lambda _: None)

        async with Client(bed.url, lambda: credentials.mint("r1", key, clock.now())) as client:
            watching = asyncio.create_task(
                watch(inbox, client, joined, retries, clock, Watcher("boot", Platform.LOCAL))
            )
            await received(inbox, 2)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    assert clock.failures == list(range(1, FAILURES + 1))
    assert retries.failures == 0


async def test_a_revoked_agent_joins_again_with_a_fresh_token_and_its_state(tmp_path: Path) -> None:
    state = tmp_path / "agent"
    async with running(tmp_path / "server") as bed:
        await configure(bed, "a")
        async with connected(state, await join_token(bed)) as inbox:
            await received(inbox, 1)
        async with bed.client() as admin:
            await admin.revoke_runtime("r1")
        await configure(bed, "b")
        fresh, revoked_keys = await join_token(bed), keys(state)

        async with connected(state, fresh) as inbox:
            assert inbox.newest is not None
            await received(inbox, 2)
        assert len(keys(state)) == 1
        assert keys(state) != revoked_keys

        # A unit file passes the same token at each start.
        joined = await membership(state)
        await configure(bed, "c")
        async with connected(state, fresh) as inbox:
            await received(inbox, 3)
        assert await membership(state) == joined


async def test_an_old_token_does_not_affect_a_working_membership(tmp_path: Path) -> None:
    state = tmp_path / "agent"
    async with running(tmp_path / "server") as bed:
        await configure(bed, "a")
        used = await join_token(bed)
        async with connected(state, used) as inbox:
            await received(inbox, 1)
        # Earlier versions did not record the token.
        before = msgspec.structs.replace(await membership(state), token="")
        await in_files(state).save_membership(before)
        await configure(bed, "b")

        async def is_recorded() -> bool:
            return (await membership(state)).token != ""

        async with connected(state, used) as inbox:
            await received(inbox, 2)
            await until(is_recorded, within_s=WITHIN_S)
            await configure(bed, "c")
            await received(inbox, 3)
        assert ((await membership(state)).key, keys(state)) == (before.key, [before.key])


async def test_an_interrupted_join_is_completed_with_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, save, enrolled = tmp_path / "agent", AgentState.save_membership, 0

    async def fail_once(stored: AgentState, joined: Membership) -> None:
        nonlocal enrolled
        enrolled += 1
        if enrolled == 2:
            raise GovernorError(Kind.EXHAUSTED, "disk-full", "no space left")
        await save(stored, joined)

    monkeypatch.setattr(AgentState, "save_membership", fail_once)
    async with running(tmp_path / "server") as bed:
        await configure(bed, "a")
        async with connected(state, await join_token(bed)) as inbox:
            await received(inbox, 1)
        async with bed.client() as admin:
            await admin.revoke_runtime("r1")
        await configure(bed, "b")
        async with connected(state, await join_token(bed)) as inbox:
            await received(inbox, 2)
    assert enrolled == 3
    assert keys(state) == [(await membership(state)).key]


async def test_an_agent_moves_to_another_server_with_its_state(tmp_path: Path) -> None:
    state = tmp_path / "agent"
    async with running(tmp_path / "one") as one, running(tmp_path / "two") as two:
        for host in ("a", "b", "c"):
            await configure(one, host)
        async with connected(state, await join_token(one)) as inbox:
            await received(inbox, 3)
        await configure(two, "d")
        first, second = one.services.site.delivery_key_id, two.services.site.delivery_key_id
        token = await join_token(two)

        async with connected(state, token) as inbox:
            # The stored delivery stays in force until the new server has sent one, whose sequences start again.
            assert (inbox.newest and inbox.newest.sequence, inbox.signed and inbox.signed.key_id) == (3, first)
            old = inbox.signed
            await received(inbox, 1, second)
            assert old is not None
            with pytest.raises(GovernorError, match="not signed by the pinned key"):
                await inbox.accept(old, await membership(state))
        async with connected(state, token) as inbox:
            assert await has(inbox, 1, second)()
