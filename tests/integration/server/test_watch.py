"""The watch of a runtime: newest delivery only, resumable, bounded, isolated from slow clients."""

import asyncio
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from governor.domain.bundles import Delivery
from governor.domain.reports import State
from governor.errors import GovernorError, Kind
from governor.server.services import DEFAULT_TIMING
from governor.wire import credentials
from governor.wire.deliveries import open_delivery
from governor.wire.formats import DELIVERY_FORMATS, REPORT_FORMATS
from governor.wire.rest import PREFIX
from testbed.waiting import until
from tests.integration.server.bed import Agent, ServerBed, component, profile, report_on, running, runtime

# On a busy machine the kernel must not close a stalled connection (dead_s) before the server does (stall_s).
SHORT_TIMEOUTS = DEFAULT_TIMING._replace(keepalive_s=0.05, stall_s=0.2, dead_s=600.0)


def layer(host: str, **spec: Any) -> dict[str, Any]:
    return profile("orders", component("store", redisHost=host), **spec)


async def is_watching(bed: ServerBed, name: str = "r1") -> bool:
    return bed.services.hub.presence(name).watching


async def is_not_watching(bed: ServerBed, name: str = "r1") -> bool:
    return not bed.services.hub.presence(name).watching


def host_of(delivery: Delivery) -> str:
    return str(delivery.resources[0]["spec"]["metadata"][0]["value"])


async def test_an_open_watch_gets_each_delivery_and_a_new_one_only_the_newest(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        async with agent.watching() as take:
            first = await take()
            await bed.apply(layer("b"))
            second = await take()
        for host in ("c", "d", "e"):
            await bed.apply(layer(host))
        newest = await agent.newest(after=second.sequence)
    assert [(each.sequence, host_of(each)) for each in (first, second, newest)] == [(1, "a"), (2, "b"), (5, "e")]


async def test_a_watch_resumed_at_the_newest_waits_for_the_next(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        async with agent.watching(after=1) as take:
            next_delivery = take()
            await until(lambda: is_watching(bed))
            assert not next_delivery.done()
            await bed.apply(layer("a", apply={"strategy": "rolling"}))
            delivery = await next_delivery
    assert (delivery.sequence, delivery.attempt) == (2, 2)


async def test_a_watch_without_a_delivery_waits_for_the_first(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        agent = await bed.enrol("r1")
        async with agent.watching() as take:
            first = take()
            await until(lambda: is_watching(bed))
            await bed.apply(layer("a"))
            assert (await first).sequence == 1


async def test_a_large_delivery_is_announced_and_fetched(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("x" * 100_000))
        agent = await bed.enrol("r1")
        headers = {"Authorization": f"Bearer {agent.credential().reveal()}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(f"{bed.url}{PREFIX}/runtimes/r1/watch") as stream:
                raw = b""
                while b"\n\n" not in raw.removeprefix(b": connected\n\n"):
                    raw += await stream.content.readany()
            url = f"{bed.url}{PREFIX}/runtimes/r1/bundles/1"
            async with session.get(url) as fetched:
                etag, cache = fetched.headers["ETag"], fetched.headers["Cache-Control"]
            async with session.get(url, headers={"If-None-Match": etag}) as unchanged:
                assert unchanged.status == 304
        delivery = await agent.newest()
    assert b'event: notice\nid: 1\ndata: {"sequence":1}\n\n' in raw
    assert (etag, cache) == (f'"{delivery.position}-1"', "no-store")
    assert host_of(delivery) == "x" * 100_000


async def test_an_idle_watch_sends_keep_alives(tmp_path: Path) -> None:
    async with running(tmp_path, timing=SHORT_TIMEOUTS) as bed:
        await bed.apply(runtime("r1"))
        agent = await bed.enrol("r1")
        headers = {"Authorization": f"Bearer {agent.credential().reveal()}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{bed.url}{PREFIX}/runtimes/r1/watch") as stream,
            asyncio.timeout(10),
        ):
            seen = b""
            while seen.count(b": keep-alive\n\n") < 3:
                seen += await stream.content.readany()
    assert b"data:" not in seen


async def test_a_disconnected_agent_is_shown_as_not_watching(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        async with agent.watching() as take:
            await take()
            async with bed.client() as admin:
                during = await admin.runtime("r1")
        await until(lambda: is_not_watching(bed))
        async with bed.client() as admin:
            after = await admin.runtime("r1")
    connected = [
        condition.reason for view in (during, after) for condition in view.conditions if condition.type == "Connected"
    ]
    assert connected == ["Watching", "NotWatching"]


async def stall(bed: ServerBed, agent: Agent) -> asyncio.StreamWriter:
    """Open a watch and never read from it."""
    _, writer = await asyncio.open_connection(bed.address.host, bed.address.port, limit=1)
    head = (
        f"GET {PREFIX}/runtimes/{agent.name}/watch HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {agent.credential().reveal()}\r\n\r\n"
    )
    writer.write(head.encode())
    await until(lambda: is_watching(bed, agent.name))
    return writer


async def test_a_stalled_client_is_aborted_and_does_not_delay_others(tmp_path: Path) -> None:
    async with running(tmp_path, timing=SHORT_TIMEOUTS) as bed:
        await bed.apply(runtime("r1"), runtime("r2"))
        stalled, healthy = await bed.enrol("r1"), await bed.enrol("r2")
        writer = await stall(bed, stalled)
        async with healthy.watching() as take:
            sent = 0
            # Exceeds every socket buffer, so that the stalled connection blocks.
            while await is_watching(bed, "r1"):
                sent += 1
                assert sent < 1000, "the stalled client was never aborted"
                await bed.apply(layer(f"{sent}-" + "x" * 60_000))
                assert host_of(await take()).startswith(f"{sent}-")
        ((_, _, stalled_streams),) = bed.services.metrics.stalled.samples()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    assert stalled_streams == 1


async def test_a_runtime_has_no_access_to_another_runtime(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), layer("a"))
        agent = await bed.enrol("r1")
        delivery = await agent.newest()
        async with agent.client() as client:
            async with aclosing(client.watch("r2")) as watch:
                rejections = [await rejection(anext(watch))]
            forged = report_on(delivery, State.VERIFIED, runtime="r2")
            rejections += [
                await rejection(call)
                for call in (
                    client.delivery("r2", 1),
                    client.runtime("r2"),
                    client.runtime("no-such-runtime"),
                    client.report(forged),
                    client.runtimes(),
                    client.documents(),
                    client.revisions(),
                    client.tokens(),
                )
            ]
            own = await client.runtime("r1")
    assert {(error.kind, error.code) for error in rejections} == {(Kind.DENIED, "not-yours")}
    assert len({error.message for error in rejections}) == 1
    assert own.name == "r1"


async def rejection(call: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await call
    return caught.value


async def test_users_cannot_read_deliveries_or_report(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        delivery = await agent.newest()
        async with bed.client() as admin, aclosing(admin.watch("r1")) as watch:
            rejections = [
                await rejection(anext(watch)),
                await rejection(admin.delivery("r1", 1)),
                await rejection(admin.report(report_on(delivery, State.VERIFIED))),
            ]
            seen = await admin.runtime("r1")
    assert {error.code for error in rejections} == {"role-insufficient"}
    assert seen.report is None


async def test_a_delivery_is_signed_by_the_key_from_the_enrolment(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        async with agent.client() as client:
            signed = await client.delivery("r1", 1)
    assert signed.key_id == credentials.key_id(agent.delivery_key)
    assert open_delivery(signed, agent.delivery_key).sequence == 1
    with pytest.raises(GovernorError, match="not signed"):
        open_delivery(signed, agent.key.public_key())


async def test_stopping_the_server_closes_open_watches(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        client = agent.client()
        await client.__aenter__()
        watch = client.watch("r1")
        await anext(watch)
    with pytest.raises(GovernorError) as caught:
        await anext(watch)
    await client.__aexit__(None, None, None)
    assert caught.value.kind is Kind.UNAVAILABLE


@pytest.mark.parametrize("announced", [{DELIVERY_FORMATS: "8, 9"}, {REPORT_FORMATS: "9"}])
async def test_an_agent_without_a_common_format_gets_a_clear_error(tmp_path: Path, announced: dict[str, str]) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        headers = {"Authorization": f"Bearer {agent.credential().reveal()}", **announced}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{bed.url}{PREFIX}/runtimes/r1/watch") as response,
        ):
            problem = await response.json()
        seen = bed.services.hub.presence("r1")
    assert (response.status, problem["type"]) == (501, "format-unsupported")
    assert "upgrade the server" in problem["title"]
    assert not seen.watching


@pytest.mark.parametrize(("announced", "number"), [({}, 1), ({DELIVERY_FORMATS: "1, 2, 3"}, 2)])
async def test_the_newest_common_format_is_sent(tmp_path: Path, announced: dict[str, str], number: int) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        headers = {"Authorization": f"Bearer {agent.credential().reveal()}", **announced}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{bed.url}{PREFIX}/runtimes/r1/bundles/1") as response,
        ):
            signed = await response.json()
    assert signed.get("format", 1) == number


async def test_a_report_with_unknown_fields_is_accepted_and_a_request_with_them_is_not(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), layer("a"))
        agent = await bed.enrol("r1")
        delivery = await agent.newest()
        report = msgspec.to_builtins(report_on(delivery, State.VERIFIED, session=agent.session))
        report["resources"][0]["later"] = report["later"] = {"x": 1}
        headers = {"Authorization": f"Bearer {agent.credential().reveal()}"}
        url = f"{bed.url}{PREFIX}/runtimes/r1/reports"
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=report) as accepted:
            pass
        headers = {"Authorization": f"Bearer {bed.admin_token.reveal()}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{bed.url}{PREFIX}/changes", json={"documents": [], "later": 1}) as rejected,
            session.post(f"{bed.url}{PREFIX}/changes", json={"documents": [{**runtime("r2"), "later": 1}]}) as document,
        ):
            pass
        async with bed.client() as viewer:
            view = await viewer.runtime("r1")
    assert (accepted.status, rejected.status, document.status) == (204, 400, 400)
    assert view.summary.state == "Verified,NotWatching"
