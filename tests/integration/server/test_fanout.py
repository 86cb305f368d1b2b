"""Deliveries to many agents at once: one signature for a batch, and no agent that does not read costs much."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from governor.client import Client
from governor.domain.bundles import Delivery
from governor.server.services import DEFAULT_TIMING
from governor.server.uvicorn_server import _Protocol
from governor.server.watch import fanout
from governor.server.watch.hub import Stream
from governor.wire.deliveries import open_delivery
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

STALLED = 500
MAX_BUFFERED = 256 * 1024
"""The transport's limit of 64 KiB, and one delivery of 64 KiB with its escapes."""


def layer(host: str, **spec: Any) -> dict[str, Any]:
    return profile("shared", component("store", redisHost=host, redisPassword="canary"), **spec)


def streams(bed: ServerBed) -> list[Stream]:
    return bed.services.hub.streams()


@asynccontextmanager
async def idle_watches(
    bed: ServerBed, names: Sequence[str]
) -> AsyncIterator[Sequence[Callable[[], Awaitable[Delivery]]]]:
    """Open a watch for each of some new runtimes; provide what returns the next delivery of each."""
    await bed.apply(*map(runtime, names), layer("a"))
    async with AsyncExitStack() as stack:
        agents = [await bed.enrol(name) for name in names]
        takes = [await stack.enter_async_context(agent.watching()) for agent in agents]
        for take in takes:
            await take()

        async def are_idle() -> bool:
            return all(each.feed is not None for each in streams(bed))

        await until(are_idle)
        yield takes


async def test_agents_of_a_batch_share_one_signature_and_one_body(tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(7)]
    async with running(tmp_path) as bed, AsyncExitStack() as stack:
        await bed.apply(*map(runtime, names), layer("a"))
        agents = [await bed.enrol(name) for name in names]
        watches = []
        for agent in agents:
            client: Client = await stack.enter_async_context(agent.client())
            watches.append(client.watch(agent.name))
            await anext(watches[-1])

        async def are_idle() -> bool:
            return all(each.feed is not None for each in streams(bed))

        await until(are_idle)
        await bed.apply(layer("b"))
        async with asyncio.timeout(10):
            signed = [await anext(watch) for watch in watches]
        opened = [open_delivery(each, agent.delivery_key) for each, agent in zip(signed, agents, strict=True)]
        for watch in watches:
            await watch.aclose()
    assert len({each.signature for each in signed}) == len({each.body for each in signed}) == 1
    assert {len(each.path) for each in signed} <= {2, 3}
    assert [(each.runtime, each.sequence) for each in opened] == [(name, 2) for name in names]
    assert {str(each.resources[0]["spec"]["metadata"][1]["value"]) for each in opened} == {"canary"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the runtimes and sequences of deliveries that are sent to idle watches."""
    found: list[tuple[str, int]] = []
    send = Stream.send

    def record(stream: Stream, delivery: Delivery, parts: Sequence[bytes]) -> None:
        found.append((delivery.runtime, delivery.sequence))
        send(stream, delivery, parts)

    monkeypatch.setattr(Stream, "send", record)
    return found


async def test_a_batch_is_written_in_parts_between_which_requests_are_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(fanout, "AT_ONCE", 2)
    names, seen = [f"r{number}" for number in range(7)], set[int]()

    async def look() -> None:
        while True:
            seen.add(len(sent))
            await asyncio.sleep(0)

    async with running(tmp_path) as bed, idle_watches(bed, names) as takes:
        looking = asyncio.create_task(look())
        await bed.apply(layer("b"))
        found = await asyncio.gather(*(take() for take in takes))
        looking.cancel()
    assert [each.sequence for each in found] == [2] * 7
    assert sent == [(name, 2) for name in names]
    assert seen == {0, 2, 4, 6, 7}


async def until_issued(batches: list[tuple[Delivery, ...]], number: int) -> None:
    """Wait until so many batches are issued: a change is answered before."""

    async def is_issued() -> bool:
        return len(batches) == number

    await until(is_issued)


async def test_a_delivery_that_a_later_one_has_overtaken_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(fanout, "AT_ONCE", 1)
    batches: list[tuple[Delivery, ...]] = []
    async with running(tmp_path) as bed, idle_watches(bed, ["r1", "r2"]) as takes:
        send = bed.services.issuer._announce_all
        monkeypatch.setattr(bed.services.issuer, "_announce_all", batches.append)
        for number, value in enumerate("bc", start=1):
            await bed.apply(layer(value))
            await until_issued(batches, number)
        first, second = batches
        # Of each batch one delivery is written at once, and the other one later.
        send(first)
        send(second[::-1])
        found = [await take() for take in (takes[0], takes[0], takes[1])]
    assert [(each.runtime, each.sequence) for each in found] == [("r1", 2), ("r1", 3), ("r2", 3)]
    assert sent == [("r1", 2), ("r2", 3), ("r1", 3)]


async def test_a_runtime_with_another_bundle_or_a_window_is_in_the_same_batch(tmp_path: Path) -> None:
    windows = {**runtime("r2"), "spec": {"platform": "local", "windows": [{"start": "22:00", "durationMinutes": 60}]}}
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1", region="eu"), windows, layer("a"))
        one, two = await bed.enrol("r1"), await bed.enrol("r2")
        async with one.watching() as take_one, two.watching() as take_two:
            await take_one()
            await take_two()
            await bed.apply(layer("${runtime.id}"))
            found = [await take_one(), await take_two()]
    assert [each.resources[0]["spec"]["metadata"][0]["value"] for each in found] == ["r1", "r2"]
    assert [len(each.windows) for each in found] == [0, 1]


async def test_agents_that_never_read_cost_a_bounded_buffer_and_do_not_delay_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    abort = _Protocol.abort

    def recorded(protocol: _Protocol) -> None:
        sizes.append(protocol.buffered_bytes())
        abort(protocol)

    monkeypatch.setattr(_Protocol, "abort", recorded)
    names = [f"s{number}" for number in range(STALLED)]
    timing = DEFAULT_TIMING._replace(stall_s=1.0, keepalive_s=0.5, dead_s=600.0)
    async with running(tmp_path, timing=timing, small_buffers=True) as bed:
        await bed.apply(*map(runtime, ("reader", *names)))
        key = await bed.enrol_all(names)
        reader = await bed.enrol("reader")
        writers = [await bed.watch_raw(name, key) for name in names]

        async def are_watching() -> bool:
            return bed.services.hub.open_watches() == STALLED

        await until(are_watching)
        sent = 0
        async with reader.watching() as take:
            # The sockets' buffers fill up first.
            while bed.services.hub.open_watches() > 1:
                sent += 1
                assert sent < 1000, "the stalled agents were never disconnected"
                await bed.apply(layer(f"{sent}-" + "x" * 40_000))
                assert (await take()).resources[0]["spec"]["metadata"][0]["value"].startswith(f"{sent}-")
        ((_, _, stalled),) = bed.services.metrics.stalled.samples()
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
    assert stalled == len(sizes) == STALLED
    assert 0 < min(sizes) <= max(sizes) <= MAX_BUFFERED
