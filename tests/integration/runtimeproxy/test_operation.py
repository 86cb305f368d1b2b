"""The runtime proxy as a process: socket, start and stop, and a runtime that restarts."""

import asyncio
import os
import signal
import socket
from pathlib import Path

from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri.peers import FakeRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed, StartProxy
from toolchain.errors import TestbedError


async def test_d13_a_runtime_that_starts_later_is_used(
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_server: StartServer,
    peer_directory: MakeDirectory,
) -> None:
    runtime = FakeRuntime(peer_directory())
    proxy = await start_proxy(runtime.socket)
    client = await start_cri_client(proxy.socket)

    early = await client.call("Version")
    readiness, why = await proxy.get("/readyz")
    await start_server(runtime)
    late = await client.answer("Version", wait_for_ready=True)

    async def is_ready() -> bool:
        return (await proxy.get("/readyz"))[0] == 200

    assert (early.code, readiness) == ("UNAVAILABLE", 503)
    assert "the runtime is not available" in early.message
    assert "fake-runtime.sock" in why
    assert late["runtime_name"] == "fake"
    await until(is_ready)
    assert len(await proxy.wait_for_lines("upstream reachable")) == 1
    assert len(proxy.lines("upstream unreachable")) == 1


async def test_d14_the_socket_is_removed_at_exit(own_bed: Bed) -> None:
    await own_bed.client.answer("Version")
    os.kill(own_bed.proxy.pid, signal.SIGTERM)

    assert await own_bed.proxy.wait_for_exit() == 0
    assert not own_bed.proxy.socket.exists()


async def test_d14_a_socket_left_by_a_killed_proxy_is_replaced(own_bed: Bed) -> None:
    await own_bed.client.answer("Version")
    os.kill(own_bed.proxy.pid, signal.SIGKILL)
    await own_bed.proxy.wait_for_exit()
    assert own_bed.proxy.socket.exists()

    await own_bed.proxy.start()

    assert (await own_bed.client.call("Version", wait_for_ready=True)).code == "OK"


async def test_a_socket_in_use_is_not_taken_over(bed: Bed, start_server: StartServer) -> None:
    second = RuntimeProxy(bed.proxy.directory, bed.runtime.socket)
    second.log = bed.proxy.directory / "second.log"
    rejected = False
    try:
        await start_server(second)
    except TestbedError:
        rejected = True

    assert rejected
    assert "another program serves on" in second.log.read_text()
    assert (await bed.client.call("Version")).code == "OK"


async def test_a_file_that_is_not_a_socket_is_not_removed(
    peer_directory: MakeDirectory, start_server: StartServer
) -> None:
    proxy = RuntimeProxy(peer_directory(), Path("/nowhere"))
    proxy.directory.mkdir()
    proxy.socket.write_text("precious")
    rejected = False
    try:
        await start_server(proxy)
    except TestbedError:
        rejected = True

    assert rejected
    assert proxy.socket.read_text() == "precious"


async def test_d21_a_call_in_progress_ends_before_the_proxy_does(own_bed: Bed) -> None:
    await own_bed.runtime.set({"method": "Status", "delay_s": 2})
    slow = asyncio.create_task(own_bed.client.call("Status"))

    async def is_in_progress() -> bool:
        return await own_bed.runtime.open_calls() == 1

    await until(is_in_progress)
    os.kill(own_bed.proxy.pid, signal.SIGTERM)

    assert (await slow).code == "OK"
    assert await own_bed.proxy.wait_for_exit() == 0
    assert (await own_bed.client.wire()).errors == ()


async def test_a_second_signal_aborts_calls_in_progress_and_logs_it(own_bed: Bed) -> None:
    await own_bed.runtime.set({"method": "Status", "delay_s": 600})
    slow = asyncio.create_task(own_bed.client.call("Status"))

    async def is_in_progress() -> bool:
        return await own_bed.runtime.open_calls() == 1

    async def is_stopping() -> bool:
        return bool(own_bed.proxy.lines("stopping"))

    await until(is_in_progress)
    os.kill(own_bed.proxy.pid, signal.SIGTERM)
    await until(is_stopping)
    os.kill(own_bed.proxy.pid, signal.SIGTERM)

    assert await own_bed.proxy.wait_for_exit() == 1
    assert (await slow).code == "UNAVAILABLE"
    assert list(own_bed.proxy.socket.parent.glob("*.sock")) == []
    [end] = own_bed.proxy.lines("stopped at once, components were interrupted")
    assert end["components"] == ["server"]
    assert not own_bed.proxy.lines("components did not stop in time")


async def test_d21_metrics_and_health_are_served(bed: Bed) -> None:
    await bed.client.answer("Version")

    assert (await bed.proxy.get("/healthz"))[0] == 200
    assert await bed.proxy.metric('governor_proxy_connections{mode="copied"}') == 1
    assert await bed.proxy.metric("governor_proxy_runtime_up") == 1


async def test_the_runtime_restarts_under_a_client(own_bed: Bed) -> None:
    await own_bed.client.answer("Version")
    await own_bed.runtime.kill()
    lost = await own_bed.client.call("Version")
    await own_bed.runtime.start()

    assert lost.code == "UNAVAILABLE"
    assert (await own_bed.client.call("Version", wait_for_ready=True)).code == "OK"


async def test_a_client_that_does_not_read_applies_back_pressure_to_the_runtime(
    start_fake_runtime: StartFakeRuntime, start_proxy: StartProxy, start_hook_plugin: StartHookPlugin
) -> None:
    """Unread bytes do not accumulate in the proxy: its memory stays below what the runtime sends."""
    sent = 0
    runtime = (await start_fake_runtime()).socket.with_name("flood.sock")

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while sent < 64 * 1024 * 1024:
            # Frames of an unknown type, which are relayed.
            writer.write(b"\x00\x40\x00\xee\x00\x00\x00\x00\x00" + bytes(16384))
            await writer.drain()
            sent += 16393

    async def has_begun() -> bool:
        return sent > 0

    async with await asyncio.start_unix_server(flood, str(runtime)):
        proxy = await start_proxy(runtime)
        with socket.socket(socket.AF_UNIX) as idle:
            idle.connect(str(proxy.socket))
            idle.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            await until(has_begun)
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.3)

    assert 0 < sent < 8 * 1024 * 1024
