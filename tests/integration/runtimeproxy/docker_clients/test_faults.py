"""Connections that are cut on either side, and a dockerd that exits: clients get clear errors, the proxy serves on."""

import asyncio
import io
import os
import random
import signal
import tarfile
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import docker
import pytest

from testbed.commands import WITHIN_S
from testbed.cri.runtime_proxy import ended
from testbed.docker.engine import EngineError
from testbed.waiting import until
from tests.integration.runtimeproxy.docker_clients.bed import IDLE, DockerBed
from tests.integration.runtimeproxy.docker_clients.conftest import StartProxiedBed
from tests.integration.runtimeproxy.docker_clients.raw import chunked, container, raw_connection, request


async def test_a_killed_client_ends_what_it_was_attached_to(bed: DockerBed) -> None:
    running = await bed.run(script="while :; do echo x; usleep 1000; done")
    async with AsyncExitStack() as stack:
        streams = [
            ("exec", "--interactive", running, "sh", "-c", "echo ready; cat"),
            ("logs", "--follow", running),
            ("attach", running),
        ]
        for words in streams:
            process = await stack.enter_async_context(bed.cli.running(*words))
            assert await _line(process) != b""
            process.kill()
    # The command's input has ended, so it has exited.
    await until(lambda: _has_processes(bed, running, 2))
    assert await bed.cli("exec", running, "echo", "again") == "again"


async def _has_processes(bed: DockerBed, container: str, most: int) -> bool:
    return len((await bed.engine("GET", f"/containers/{container}/top"))["Processes"]) <= most


async def test_a_cut_upload_is_not_taken_for_a_whole_one(bed: DockerBed) -> None:
    body, line = container(bed.image), "POST /v1.41/containers/create?name=cut"
    sized = request(line, b"", f"Content-Length: {len(body)}") + body[:-4]
    in_chunks = request(line, b"", "Transfer-Encoding: chunked") + chunked(body, len(body))[:-11]
    for sent in (sized, in_chunks):
        async with raw_connection(bed.socket) as connection:
            await connection.send(sent)
        async with raw_connection(bed.socket) as connection:
            await connection.send(sent)
            connection.writer.write_eof()
            async with asyncio.timeout(WITHIN_S):
                assert await connection.reader.read(12) in (b"", b"HTTP/1.1 400", b"HTTP/1.1 500")
    assert await bed.engine("GET", "/containers/json", query={"all": "1"}) == []


@pytest.fixture(params=[pytest.param("direct", marks=pytest.mark.soak), "proxied"])
def start_bed(
    request: pytest.FixtureRequest, start_proxied_bed: StartProxiedBed
) -> Callable[..., Awaitable[DockerBed]]:
    """Return a function that starts a bed of the test's own."""

    async def start() -> DockerBed:
        bed = await start_proxied_bed()
        return bed if request.param == "proxied" else DockerBed(bed.dockerd, bed.dockerd.socket)

    return start


async def test_streams_end_with_dockerd_and_its_successor_is_served(
    start_bed: Callable[..., Awaitable[DockerBed]],
) -> None:
    bed = await start_bed()
    client = await asyncio.to_thread(docker.DockerClient, base_url=f"unix://{bed.socket}")
    running = await bed.run("--name=long", "--restart=always", script=f"echo ready; {IDLE}")
    for end in (bed.dockerd.kill, bed.dockerd.terminate):
        assert await asyncio.to_thread(client.ping)
        async with AsyncExitStack() as stack:
            logs = await stack.enter_async_context(bed.cli.running("logs", "--follow", running))
            commanded = await stack.enter_async_context(
                bed.cli.running("exec", "-i", running, "sh", "-c", "echo in; cat")
            )
            events = await stack.enter_async_context(bed.cli.running("events"))
            waiting = await stack.enter_async_context(bed.cli.running("wait", running))
            assert [await _line(each) for each in (logs, commanded)] == [b"ready\n", b"in\n"]
            await end()
            for process in (logs, commanded, events, waiting):
                async with asyncio.timeout(WITHIN_S):
                    await process.wait()
        await bed.dockerd.start()
        await until(lambda: _is_running(bed, running))
        assert await asyncio.to_thread(lambda: [each.name for each in client.containers.list()]) == ["long"]
        assert await bed.cli("exec", running, "echo", "again") == "again"
    await asyncio.to_thread(client.close)


async def _is_running(bed: DockerBed, container: str) -> bool:
    return (await bed.engine("GET", f"/containers/{container}/json"))["State"]["Running"] is True


async def test_requests_without_dockerd_fail_clearly_until_it_is_back(start_proxied_bed: StartProxiedBed) -> None:
    bed = await start_proxied_bed()
    assert await bed.cli("ps", "--quiet") == ""
    await bed.dockerd.kill()
    reason = f"the Docker daemon at {bed.dockerd.socket} cannot be reached"
    listing = asyncio.create_task(bed.cli.outcome("ps"))
    with pytest.raises(EngineError, match=f"502: .*{reason}"):
        await bed.engine("POST", "/containers/create", {"Image": bed.image})
    outcome = await listing
    assert outcome.code == 1
    assert reason in outcome.err
    await bed.dockerd.start()
    assert await bed.cli("run", "--rm", bed.image, "-c", "echo back") == "back"


@pytest.mark.soak
async def test_a_proxy_that_starts_before_dockerd_serves_once_it_is_there(start_proxied_bed: StartProxiedBed) -> None:
    bed = await start_proxied_bed()
    await bed.proxy.stop()
    await bed.dockerd.kill()
    bed.dockerd.socket.unlink(missing_ok=True)
    await bed.proxy.start()
    assert (await bed.cli.outcome("ps")).code == 1
    await bed.dockerd.start()
    assert await bed.cli("ps", "--quiet") == ""


@pytest.mark.soak
async def test_a_dockerd_that_hangs_blocks_no_client_that_does_not_need_it(start_proxied_bed: StartProxiedBed) -> None:
    bed = await start_proxied_bed()
    await bed.dockerd.pause()
    async with bed.cli.running("ps") as process:
        status, _ = await bed.proxy.get("/metrics")
        assert status == 200
        assert process.returncode is None
        bed.dockerd.resume()
        async with asyncio.timeout(WITHIN_S):
            assert await process.wait() == 0


async def test_an_upgrade_of_the_proxy_cuts_no_stream(start_proxied_bed: StartProxiedBed) -> None:
    bed = await start_proxied_bed()
    running = await bed.run(script=IDLE)
    context = _context(f"FROM {bed.image}\nCOPY data /data\n", random.Random(26).randbytes(2**21))
    talk = ("exec", "--interactive", running, "sh", "-c", "while read a; do echo $a.; done")
    build = ("build", "--tag=local.test/halves:1", "-")
    async with bed.cli.running(*talk) as talking, bed.cli.running(*build) as building:
        assert await _answer(talking, b"before") == b"before.\n"
        await _send(building, context[: 2**20])
        replaced = await bed.proxy.upgrade()
        assert replaced != bed.proxy.pid
        assert await bed.cli("ps", "--quiet", "--no-trunc") == running
        assert await _answer(talking, b"after") == b"after.\n"
        async with asyncio.timeout(WITHIN_S):
            printed, _ = await building.communicate(context[2**20 :])
            await talking.communicate(b"")
    assert b"Successfully tagged local.test/halves:1" in printed
    assert talking.returncode == 0
    await ended(replaced)


def _context(dockerfile: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in (("Dockerfile", dockerfile.encode()), ("data", data)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


async def _answer(process: Process, line: bytes) -> bytes:
    await _send(process, line + b"\n")
    return await _line(process)


async def _send(process: Process, data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    async with asyncio.timeout(WITHIN_S):
        await process.stdin.drain()


@pytest.mark.soak
async def test_a_terminated_proxy_leaves_no_socket_and_no_process(start_proxied_bed: StartProxiedBed) -> None:
    bed = await start_proxied_bed()
    running = await bed.run()
    async with bed.cli.running("events", "--since=1") as process:
        assert b"image load" in await _line(process)
        os.kill(bed.proxy.pid, signal.SIGTERM)
        assert await bed.proxy.wait_for_exit() == 0
        async with asyncio.timeout(WITHIN_S):
            await process.wait()
    assert not bed.proxy.socket.exists()
    assert await _is_running(DockerBed(bed.dockerd, bed.dockerd.socket), running)


async def _line(process: Process) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        return await process.stdout.readline()
