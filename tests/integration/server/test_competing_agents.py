"""One agent per runtime: a second agent is rejected, the same agent or a later process of it replaces its old watch."""

import asyncio
import ctypes
import random
import socket
import struct
from contextlib import aclosing, suppress
from pathlib import Path

import aiohttp
import pytest

from governor.agent.inbox import Inbox, Watcher, watch
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.state.records import Membership
from governor.domain.documents import Platform
from governor.errors import GovernorError, Kind
from governor.process.clock import SystemClock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.server.services import DEFAULT_TIMING
from governor.wire import credentials
from governor.wire.rest import PREFIX, Enrolment
from testbed.waiting import until
from tests.integration.server.bed import Agent, ServerBed, component, profile, running, runtime

# Long enough for the successor to be rejected on a busy machine before the dead peer is detected.
SHORT_TIMEOUTS = DEFAULT_TIMING._replace(keepalive_s=0.05, dead_s=5.0)
SECOND = Watcher("second", Platform.LOCAL)
LAYER = profile("orders", component("store", redisHost="a"))


async def rejection(agent: Agent, boot: str, host: str = "") -> GovernorError:
    async with agent.client() as client, aclosing(client.watch(agent.name, boot=boot, host=host)) as watch:
        with pytest.raises(GovernorError) as caught:
            async with asyncio.timeout(10):
                await anext(watch)
    return caught.value


async def is_not_watching(bed: ServerBed) -> bool:
    return not bed.services.hub.presence("r1").watching


async def test_a_second_agent_is_rejected_with_the_host_of_the_first(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), LAYER)
        agent = await bed.enrol("r1")
        async with agent.client() as client, aclosing(client.watch("r1", boot="one", host="shop-1")) as first:
            await anext(first)
            error = await rejection(agent, "two", "shop-2")
            assert bed.services.hub.open_watches() == 1
        await until(lambda: is_not_watching(bed))
        async with agent.client() as client, aclosing(client.watch("r1", boot="two", host="shop-2")) as second:
            await anext(second)
    assert (error.kind, error.code) == (Kind.CONFLICT, "runtime-in-use")
    assert "in use by another agent on host 'shop-1' since 20" in error.message


async def test_the_same_agent_replaces_its_own_old_watch(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), LAYER)
        agent = await bed.enrol("r1")
        async with agent.client() as client, aclosing(client.watch("r1", boot="one")) as old:
            await anext(old)
            async with agent.client() as reconnected, aclosing(reconnected.watch("r1", boot="one")) as new:
                await anext(new)
                with pytest.raises(GovernorError) as closed:
                    await anext(old)
                assert bed.services.hub.presence("r1").watching
    assert closed.value.code == "stream-ended"


async def test_a_later_process_replaces_the_watch_of_an_earlier_one(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), LAYER)
        agent = await bed.enrol("r1")
        async with agent.client() as client, aclosing(client.watch("r1", boot="one", epoch=1)) as first:
            await anext(first)
            async with agent.client() as successor, aclosing(successor.watch("r1", boot="two", epoch=2)) as second:
                await anext(second)
                with pytest.raises(GovernorError) as closed:
                    await anext(first)
                assert (await rejection(agent, "one")).code == "runtime-in-use", "without an epoch, as older agents"
                assert bed.services.hub.presence("r1").watching
    assert closed.value.code == "stream-ended"


async def test_an_epoch_that_is_no_number_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        agent = await bed.enrol("r1")
        headers = {"Authorization": f"Bearer {agent.credential().reveal()}", "Governor-Agent-Epoch": "high"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{bed.url}{PREFIX}/runtimes/r1/watch", headers=headers) as response,
        ):
            assert response.status == 400
            assert "header Governor-Agent-Epoch must be an integer" in await response.text()


async def test_an_unprintable_or_long_host_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        agent = await bed.enrol("r1")
        errors = [await rejection(agent, "one", host) for host in ("a\nb", "x" * 254)]
    assert {error.kind for error in errors} == {Kind.INVALID}


def drop_all_packets(connection: socket.socket) -> None:
    """Attach a filter that drops all incoming packets, as if the host had lost power."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop))
    connection.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


async def test_the_watch_of_a_dead_host_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, timing=SHORT_TIMEOUTS) as bed:
        await bed.apply(runtime("r1"), LAYER)
        agent = await bed.enrol("r1")
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", bed.address.port)) as dead:
            dead.setblocking(False)
            head = f"GET {PREFIX}/runtimes/r1/watch?boot=dead HTTP/1.1\r\nHost: x\r\n"
            credential = f"Authorization: Bearer {agent.credential().reveal()}\r\n\r\n"
            await loop.sock_sendall(dead, (head + credential).encode())
            assert await loop.sock_recv(dead, 1)
            drop_all_packets(dead)
            assert (await rejection(agent, "successor")).code == "runtime-in-use"
            await until(lambda: is_not_watching(bed))
            async with agent.client() as client, aclosing(client.watch("r1", boot="successor")) as successor:
                await anext(successor)


async def reports_conflict(inbox: Inbox) -> bool:
    return "in use by another agent on host 'shop-1'" in inbox.identity_conflict()


async def has_no_conflict(inbox: Inbox) -> bool:
    return inbox.identity_conflict() == ""


async def test_a_rejected_agent_reports_the_conflict_and_takes_over_later(tmp_path: Path) -> None:
    retries = Retries(Backoff(initial_s=0.01, max_s=0.05), random.Random(1))
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), LAYER)
        agent = await bed.enrol("r1")
        public = credentials.encode_public_key(agent.delivery_key)
        membership = Membership(bed.url, "", Enrolment("r1", credentials.key_id(agent.delivery_key), public))
        inbox = Inbox(AgentState(FileBlobs(tmp_path)), SystemClock(), lambda: None, lambda _: None)
        async with agent.client() as client:
            async with aclosing(client.watch("r1", boot="first", host="shop-1")) as first:
                await anext(first)
                second = asyncio.create_task(watch(inbox, client, membership, retries, SystemClock(), SECOND))
                await until(lambda: reports_conflict(inbox))
                assert inbox.newest is None
            await until(lambda: has_no_conflict(inbox))
            second.cancel()
            with suppress(asyncio.CancelledError):
                await second
