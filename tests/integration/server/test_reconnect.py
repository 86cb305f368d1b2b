"""Agents that come back: one read each if they have the newest delivery, and tokens that are verified once."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from governor.domain.bundles import DeliveryPosition
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.server.store.deliveries import newest_deliveries
from governor.wire import credentials
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

AGENTS = [f"r{number:04d}" for number in range(1000)]


def layer(host: str) -> dict[str, Any]:
    return profile("shared", component("store", redisHost=host))


async def positions(bed: ServerBed) -> dict[str, DeliveryPosition]:
    found = await bed.services.store.read(
        lambda connection: newest_deliveries(connection, bed.services.contents, AGENTS)
    )
    return {name: each.position for name, each in found.items()}


async def test_a_thousand_agents_that_reconnect_at_once_cost_one_read_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(*map(runtime, AGENTS), layer("a"))
        key = await bed.enrol_all(AGENTS)
        held = await positions(bed)
    async with running(tmp_path) as bed:
        reads = 0
        read = bed.services.store.read

        async def counted(function: Callable[..., Any]) -> Any:
            nonlocal reads
            reads += 1
            return await read(function)

        monkeypatch.setattr(bed.services.store, "read", counted)
        writers = await asyncio.gather(*(bed.watch_raw(name, key, held[name]) for name in AGENTS))

        async def are_idle() -> bool:
            streams = bed.services.hub.streams()
            return len(streams) == len(AGENTS) and all(each.feed is not None for each in streams)

        await until(are_idle)
        assert reads == len(AGENTS)
        assert {bed.services.hub.presence(name).held_sequence for name in AGENTS} == {1}
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_a_delivery_that_is_issued_while_an_agent_reconnects_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is issued after the agent's position was compared, and before its watch is open."""
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        first = await agent.newest()
        opened = bed.services.hub.open
        issued = asyncio.Event()

        def open_late(*arguments: Any, **options: Any) -> Any:
            assert issued.is_set()
            return opened(*arguments, **options)

        read = bed.services.store.read

        async def read_first(function: Callable[..., Any]) -> Any:
            found = await read(function)
            if not issued.is_set() and "find_offer" in function.__code__.co_names:
                issued.set()
                await bed.apply(layer("b"))
            return found

        monkeypatch.setattr(bed.services.hub, "open", open_late)
        monkeypatch.setattr(bed.services.store, "read", read_first)
        second = await agent.newest(held=first.position)
    assert (first.sequence, second.sequence) == (1, 2)


@pytest.fixture
def verifications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the runtimes whose tokens are verified."""
    seen: list[str] = []
    verify = credentials.verify

    def recorded(token: Any, name: str, *arguments: Any) -> Any:
        seen.append(name)
        return verify(token, name, *arguments)

    monkeypatch.setattr(credentials, "verify", recorded)
    return seen


async def test_a_token_is_verified_once_and_is_rejected_as_soon_as_its_runtime_is_revoked_or_deleted(
    tmp_path: Path, verifications: list[str]
) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), layer("a"))
        agents = [await bed.enrol("r1"), await bed.enrol("r2")]
        clients = [bed.client(agent.credential()) for agent in agents]
        errors = []
        async with clients[0], clients[1], bed.client() as admin:
            for agent, client in zip(agents, clients, strict=True):
                for _ in range(3):
                    assert (await client.runtime(agent.name)).name == agent.name
            known = list(verifications)
            await admin.revoke_runtime("r1")
            await bed.apply(deletions=(DocumentRef("Runtime", "r2"),), allow_deletions=True)
            for agent, client in zip(agents, clients, strict=True):
                with pytest.raises(GovernorError) as caught:
                    await client.runtime(agent.name)
                errors.append(caught.value.kind)
    assert known == ["r1", "r2"]
    assert errors == [Kind.UNAUTHENTICATED, Kind.UNAUTHENTICATED]


async def test_a_known_token_is_not_accepted_for_another_runtime(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), layer("a"))
        agent = await bed.enrol("r1")
        async with bed.client(agent.credential()) as client:
            await client.runtime("r1")
            with pytest.raises(GovernorError) as caught:
                await client.runtime("r2")
    assert caught.value.kind is Kind.DENIED
