"""dockerd, clients and plugins that go away; stopping and replacing a proxy in Docker mode."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.runtime_proxy import ended
from testbed.docker.engine import EngineError, connected
from testbed.docker.fixtures import StartDockerd
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import StartProxy
from tests.integration.runtimeproxy.docker.bed import DOCKER_MODE, DockerBed
from tests.integration.runtimeproxy.docker.test_hooks import hooked, received
from tests.integration.runtimeproxy.test_watchdog import WATCHDOG, managing


async def test_the_proxy_outlives_dockerd_and_serves_again_on_the_same_connection(
    start_dockerd: StartDockerd, start_proxy: StartProxy, start_hook_plugin: StartHookPlugin
) -> None:
    dockerd = await start_dockerd()
    bed = DockerBed(dockerd, await start_proxy(dockerd.socket, DOCKER_MODE))
    await hooked(bed, await start_hook_plugin(), hooks=["PreStartContainer"], failure_policy="Fail")
    made = await bed.create_container(await bed.create_sandbox())
    async with connected(bed.proxy.socket) as (reader, writer):
        ping = b"HEAD /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"
        writer.write(ping)
        assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
        await dockerd.kill()

        with pytest.raises(EngineError, match=r"502.*cannot be reached") as raised:
            await bed.engine("POST", f"/containers/{made}/start")
        assert str(dockerd.socket) in str(raised.value)
        assert (await bed.proxy.get("/healthz"))[0] == 200
        assert (await bed.proxy.get("/readyz"))[0] == 503

        await dockerd.start()
        writer.write(ping)
        assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
    await bed.engine("POST", f"/containers/{made}/start")
    assert (await bed.proxy.get("/readyz"))[0] == 200


async def test_a_client_that_goes_while_a_plugin_works_cancels_the_request(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"method": "PreStartContainerHook", "hang": True})
    await hooked(docker_bed, plugin)
    made = await docker_bed.create_container(await docker_bed.create_sandbox())

    async with connected(docker_bed.proxy.socket) as (_, writer):
        request = f"POST /containers/{made}/start HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n\r\n"
        writer.write(request.encode())
        await until(plugin.open_calls)
    await docker_bed.proxy.wait_for_metric("governor_proxy_streams", 0)

    assert (await docker_bed.inspect(made))["State"]["Running"] is False


async def test_a_client_that_goes_before_a_plugin_is_called_cancels_the_request(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"method": "PreStartContainerHook", "hang": True})
    await hooked(docker_bed, plugin)
    proxy = docker_bed.proxy
    made = await docker_bed.create_container(await docker_bed.create_sandbox())

    async with connected(proxy.socket) as (reader, writer):
        writer.write(b"HEAD /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await proxy.pause()
        writer.write(f"POST /containers/{made}/start HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n\r\n".encode())
    proxy.resume()

    async def has_ended() -> bool:
        metrics = await proxy.metrics()
        return any(name.startswith('governor_proxy_held_calls_total{call="StartContainer"') for name in metrics)

    await until(has_ended)
    assert (await docker_bed.inspect(made))["State"]["Running"] is False


async def test_a_client_that_goes_while_dockerd_works_leaves_plugins_notified(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin, hooks=["PostStopContainer"])
    made = await docker_bed.create_container(
        await docker_bed.create_sandbox(), Cmd=["-c", "trap 'sleep 1; exit' TERM; while true; do sleep 0.1; done"]
    )
    await docker_bed.engine("POST", f"/containers/{made}/start")

    async with connected(docker_bed.proxy.socket) as (_, writer):
        writer.write(f"POST /containers/{made}/stop HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n\r\n".encode())

        async def is_stopping() -> bool:
            return await docker_bed.proxy.metric("governor_proxy_streams") == 1

        await until(is_stopping)

    async def is_notified() -> bool:
        return await received(plugin) == ["PostStopContainer"]

    await until(is_notified)


async def test_other_requests_do_not_wait_for_a_plugin(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"method": "PreRunPodSandboxHook", "hang": True})
    await hooked(docker_bed, plugin, timeout=60)
    creating = asyncio.create_task(docker_bed.create_sandbox())
    await until(plugin.open_calls)

    assert await docker_bed.engine("GET", "/containers/json", query={"all": "1"}) == []
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)


@pytest.mark.parametrize("upgrades", [2, pytest.param(10, marks=pytest.mark.soak)])
async def test_upgrades_under_load_fail_no_request_and_no_open_stream(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin, upgrades: int
) -> None:
    plugin = await start_hook_plugin({"method": "PreRunPodSandboxHook", "answer": {"labels": {"by": "p"}}})
    await hooked(docker_bed, plugin, failure_policy="Fail")
    image, stopped, counts = docker_bed.dockerd.image, asyncio.Event(), [0, 0]

    async def work(number: int) -> None:
        while not stopped.is_set():
            name = f"k8s_POD_web_shop_uid-{number}_{counts[number]}"
            made = await docker_bed.create_sandbox(name=name)
            assert (await docker_bed.inspect(made))["Config"]["Labels"]["by"] == "p"
            await docker_bed.engine("DELETE", f"/containers/{made}")
            counts[number] += 1

    running = ["run", "-i", "--network=none", "--entrypoint=/bin/cat", image]
    async with docker_bed.cli.running(*running) as cat, asyncio.TaskGroup() as group:
        assert cat.stdin is not None
        assert cat.stdout is not None
        cat.stdin.write(b"before\n")
        assert await cat.stdout.readline() == b"before\n"
        for number in range(2):
            group.create_task(work(number))
        replaced = []
        for _ in range(upgrades):
            before = list(counts)
            await until(lambda before=before: _have_grown(counts, before))  # type: ignore[misc]
            replaced.append(await docker_bed.proxy.upgrade())
        before = list(counts)
        await until(lambda: _have_grown(counts, before))
        stopped.set()
        # The replaced proxy finishes what it serves.
        cat.stdin.write(b"after\n")
        assert await cat.stdout.readline() == b"after\n"
        cat.stdin.close()
        assert await cat.wait() == 0
    for process in replaced:
        await ended(process)


async def _have_grown(counts: list[int], before: list[int]) -> bool:
    return all(now > then + 1 for now, then in zip(counts, before, strict=True))


async def test_a_replaced_proxy_that_finishes_a_stream_does_not_check_its_successor(
    docker_bed: DockerBed, tmp_path: Path
) -> None:
    proxy, image = docker_bed.proxy, docker_bed.dockerd.image
    with managing(str(tmp_path / "notify")) as manager:
        proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), **WATCHDOG}
        await proxy.stop()
        await proxy.start()
        async with docker_bed.cli.running("run", "-i", "--network=none", "--entrypoint=/bin/cat", image) as cat:
            assert cat.stdin is not None
            assert cat.stdout is not None
            cat.stdin.write(b"open\n")
            assert await cat.stdout.readline() == b"open\n"
            replaced = await proxy.upgrade()

            async def has_no_client() -> bool:
                return await proxy.metric('governor_proxy_connections{mode="relayed"}') == 0

            # A check that was under way may have connected to the successor.
            await until(has_no_client)
            # Both processes have the same interval.
            await manager.receives("WATCHDOG=1", times=4)
            # Another check by the replaced process would be a connection that stays open until it times out.
            assert await has_no_client()
            cat.stdin.close()
            assert await cat.wait() == 0
        await ended(replaced)
    assert proxy.lines("not serving") == []


@pytest.mark.parametrize("act", ["upgrade", "stop"])
async def test_idle_connections_and_event_watches_end_at_once(docker_bed: DockerBed, act: str) -> None:
    async with (
        connected(docker_bed.proxy.socket) as (reader, writer),
        docker_bed.engine.stream("GET", "/events") as events,
    ):
        writer.write(b"HEAD /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        replaced = docker_bed.proxy.pid
        if act == "upgrade":
            await docker_bed.proxy.upgrade()
        else:
            os.kill(replaced, signal.SIGTERM)
        await ended(replaced)

        assert await reader.read() == b""
        with pytest.raises(Exception, match=r"(?i)payload|closed|disconnected|reset"):
            await events.content.readline()
    assert docker_bed.proxy.lines("connections did not end in time") == []


@pytest.mark.parametrize("upgrades", [3, pytest.param(20, marks=pytest.mark.soak)])
async def test_a_request_that_crosses_an_upgrade_is_answered_or_certainly_not_received(
    docker_bed: DockerBed, upgrades: int
) -> None:
    loop, stopped, answered, unsent = asyncio.get_running_loop(), asyncio.Event(), [0, 0, 0, 0], [0]

    async def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        await loop.sock_connect(client, str(docker_bed.proxy.socket))
        return client

    async def ask(number: int) -> None:
        client = await connect()
        while not stopped.is_set():
            try:
                await loop.sock_sendall(client, b"HEAD /_ping HTTP/1.1\r\nHost: docker\r\n\r\n")
            except BrokenPipeError:
                unsent[0] += 1
                client.close()
                client = await connect()
                continue
            response = b""
            while not response.endswith(b"\r\n\r\n"):
                part = await loop.sock_recv(client, 4096)
                assert part, "the request was sent, and not answered"
                response += part
            assert response.startswith(b"HTTP/1.1 200 OK")
            answered[number] += 1
        client.close()

    async with asyncio.TaskGroup() as group:
        for number in range(len(answered)):
            group.create_task(ask(number))
        for _ in range(upgrades):
            before = list(answered)
            await until(lambda before=before: _have_grown(answered, before))  # type: ignore[misc]
            await ended(await docker_bed.proxy.upgrade())
        before = list(answered)
        await until(lambda: _have_grown(answered, before))
        stopped.set()
    assert unsent[0] >= upgrades
