"""Malicious clients lose their streams or connections, and other clients are served meanwhile."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.raw_client import PREFACE, raw_client
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import hooked, run_pod

MIB = 1024 * 1024
ENHANCE_YOUR_CALM = 0xB
CANCEL = 0x8
MAX_STREAMS = 1_000
INITIAL_WINDOW = SettingsFrame.INITIAL_WINDOW_SIZE


@pytest.fixture
async def relayed(bed: Bed, start_hook_plugin: StartHookPlugin) -> Bed:
    await hooked(bed, await start_hook_plugin())
    return bed


async def others_are_served(bed: Bed) -> None:
    assert (await bed.client.call("Version", deadline_s=60)).code == "OK"
    await run_pod(bed)


async def all_calls_end(bed: Bed) -> None:
    """Wait until only the well-behaved client's connection is left."""

    async def is_idle() -> bool:
        modes = [f'governor_proxy_connections{{mode="{mode}"}}' for mode in ("copied", "relayed")]
        connections = sum([await bed.proxy.metric(mode) for mode in modes])
        return connections <= 1 and await bed.proxy.metric("governor_proxy_streams") == 0

    await until(is_idle)

    async def has_ended() -> bool:
        return await bed.runtime.open_calls() == 0

    await until(has_ended)


@pytest.mark.parametrize("streams", [2_500, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_open_streams_beyond_the_limit_are_refused(relayed: Bed, streams: int) -> None:
    before = relayed.proxy.resident_bytes()
    async with raw_client(relayed.proxy.socket) as client:
        await client.send_preface()
        reading = asyncio.create_task(client.read_until_closed())
        for stream in range(1, 2 * streams, 2):
            await client.send(client.request(stream, "Status"))

        async def are_refused() -> bool:
            return sum(isinstance(frame, RstStreamFrame) for frame in client.received) >= streams - MAX_STREAMS

        await until(are_refused)
        assert relayed.proxy.resident_bytes() - before < 48 * MIB
        await others_are_served(relayed)
        assert not reading.done()
    await reading
    await all_calls_end(relayed)


async def test_clients_that_stop_within_a_frame_block_no_other(either_bed: Bed) -> None:
    await others_are_served(either_bed)
    before = either_bed.proxy.resident_bytes()
    halves = [b"", PREFACE[:10], PREFACE + b"\x00\x00", PREFACE + b"\x00\x40\x00\x01\x04\x00\x00\x00\x01" + bytes(8000)]
    async with AsyncExitStack() as stack:
        for number in range(200):
            client = await stack.enter_async_context(raw_client(either_bed.proxy.socket))
            await client.send(halves[number % len(halves)])
        await others_are_served(either_bed)
        assert either_bed.proxy.resident_bytes() - before < 48 * MIB
    await all_calls_end(either_bed)


async def test_a_client_of_another_protocol_is_disconnected(either_bed: Bed) -> None:
    for first in [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" + bytes(512)] * 25:
        async with raw_client(either_bed.proxy.socket) as client:
            await client.send(first)
            async with asyncio.timeout(60):
                await client.read_until_closed()
    await others_are_served(either_bed)
    await all_calls_end(either_bed)


async def test_endless_or_oversized_header_blocks_close_the_connection(relayed: Bed) -> None:
    """One block never ends, and one refers with each byte to a large field of the dynamic table."""
    before = relayed.proxy.resident_bytes()
    large = b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000
    async with raw_client(relayed.proxy.socket) as client:
        await client.send_preface()
        await client.send(
            client.request(1, "Status", flags=()),
            ContinuationFrame(1, large + b"\xbe" * 12_000, flags=["END_HEADERS"]),
        )
        assert await client.read_until_closed() == ENHANCE_YOUR_CALM
    async with raw_client(relayed.proxy.socket) as client:
        await client.send_preface()
        reading = asyncio.create_task(client.read_until_closed())
        await client.send(client.request(1, "Status", flags=()))
        while not reading.done():
            await client.send(ContinuationFrame(1, b"\x00\x01x\x01y" * 3000))
            await asyncio.sleep(0)
        # A client that goes on writing may be disconnected before it reads the reason.
        assert await reading in (ENHANCE_YOUR_CALM, None)
    await others_are_served(relayed)
    assert relayed.proxy.resident_bytes() - before < 48 * MIB
    assert await relayed.runtime.received("Status") == []
    await all_calls_end(relayed)


async def test_rapid_stream_resets_close_the_connection(relayed: Bed) -> None:
    before = relayed.proxy.resident_bytes()
    async with raw_client(relayed.proxy.socket) as client:
        await client.send_preface()
        reading = asyncio.create_task(client.read_until_closed())
        for stream in range(1, 24_000, 2):
            await client.send(
                client.request(stream, ("Status", "RunPodSandbox")[stream % 4 // 2]), RstStreamFrame(stream, CANCEL)
            )
            if stream % 4001 == 0:
                await others_are_served(relayed)
        assert await reading == ENHANCE_YOUR_CALM
    await all_calls_end(relayed)
    assert relayed.proxy.resident_bytes() - before < 48 * MIB


async def test_a_client_that_reads_no_responses_is_disconnected(relayed: Bed) -> None:
    before = relayed.proxy.resident_bytes()
    for frame in (PingFrame(0, b"12345678"), SettingsFrame(0, {INITIAL_WINDOW: 70_000})):
        async with raw_client(relayed.proxy.socket) as client:
            await client.send_preface()
            await client.send(frame.serialize() * 600_000)
            await others_are_served(relayed)
            assert relayed.proxy.resident_bytes() - before < 48 * MIB
            assert b"too many unread replies" in await client.last_bytes()
    await all_calls_end(relayed)


async def test_a_client_that_sends_only_pings_is_answered(relayed: Bed) -> None:
    async with raw_client(relayed.proxy.socket) as client:
        await client.send_preface()
        reading = asyncio.create_task(client.read_until_closed())
        for number in range(3):
            await client.send(PingFrame(0, b"number %d" % number))

            async def is_answered(sent: int = number) -> bool:
                pings = [frame for frame in client.received if isinstance(frame, PingFrame)]
                return [frame.opaque_data for frame in pings if "ACK" in frame.flags] == [
                    b"number %d" % each for each in range(sent + 1)
                ]

            await until(is_answered)
    await reading


async def test_a_client_that_never_opens_its_window_uses_little_memory(relayed: Bed) -> None:
    await relayed.runtime.set({"method": "Status", "answer_bytes": MIB})
    before = relayed.proxy.resident_bytes()
    async with raw_client(relayed.proxy.socket) as client:
        await client.send_preface({INITIAL_WINDOW: 1})
        reading = asyncio.create_task(client.read_until_closed())
        for stream in range(1, 201, 2):
            await client.send(client.request(stream, "Status"), client.message(stream))

        async def all_have_begun() -> bool:
            return sum(isinstance(frame, DataFrame) for frame in client.received) >= 100

        await until(all_have_begun)
        await others_are_served(relayed)
        assert relayed.proxy.resident_bytes() - before < 64 * MIB
    await reading
    await all_calls_end(relayed)


async def test_a_response_passes_byte_by_byte(either_bed: Bed) -> None:
    async with raw_client(either_bed.proxy.socket) as client:
        await client.send_preface({INITIAL_WINDOW: 1})
        await client.send(client.request(1, "Version"), client.message(1))
        response, sizes = b"", Counter[int]()
        async with asyncio.timeout(120):
            while (frame := await client.read()) is not None and "END_STREAM" not in frame.flags:
                if isinstance(frame, DataFrame) and frame.data:
                    response += frame.data
                    sizes[len(frame.data)] += 1
                    await client.send(WindowUpdateFrame(1, window_increment=1))

    assert b"fake" in response
    assert sizes == {1: len(response)}
    await others_are_served(either_bed)


async def test_incomplete_messages_are_held_only_up_to_a_limit(relayed: Bed) -> None:
    """Large hooked requests on two connections, of which each may use half of the limit."""
    before = relayed.proxy.resident_bytes()
    async with raw_client(relayed.proxy.socket) as one, raw_client(relayed.proxy.socket) as other:
        for client in (one, other):
            await client.send_preface()
        readings = [asyncio.create_task(client.read_until_closed()) for client in (one, other)]
        for stream in range(1, 11, 2):
            for client in (one, other):
                await client.send(client.request(stream, "RunPodSandbox"))
                await client.send(DataFrame(stream, bytes(16384)).serialize() * 960)
        await others_are_served(relayed)
        assert relayed.proxy.resident_bytes() - before < 192 * MIB
        assert await relayed.proxy.metric("governor_proxy_held_bytes") <= 128 * MIB
    await asyncio.gather(*readings)
    await all_calls_end(relayed)
