"""The watch through a faulty proxy: both sides detect the fault and the next watch resumes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from governor.client import Client, transport
from governor.domain.bundles import DeliveryPosition
from governor.errors import GovernorError, Kind
from governor.server.services import DEFAULT_TIMING
from governor.wire.deliveries import SignedDelivery, open_delivery
from testbed.proxies.faults import FaultProxy
from testbed.waiting import until
from tests.integration.server.bed import Agent, ServerBed, component, profile, running, runtime

SHORT_TIMEOUTS = DEFAULT_TIMING._replace(keepalive_s=0.05, stall_s=0.2)


def layer(host: str) -> dict[str, Any]:
    return profile("orders", component("store", redisHost=host))


@asynccontextmanager
async def faulty(tmp_path: Path) -> AsyncIterator[tuple[ServerBed, FaultProxy, Agent]]:
    async with running(tmp_path, timing=SHORT_TIMEOUTS) as bed, FaultProxy(bed.address.port) as proxy:
        await bed.apply(runtime("r1"), layer("a"))
        yield bed, proxy, await bed.enrol("r1")


def through(proxy: FaultProxy, agent: Agent) -> Client:
    return Client(proxy.url, agent.credential)


def sequence(agent: Agent, signed: SignedDelivery) -> int:
    return open_delivery(signed, agent.delivery_key).sequence


async def is_not_watching(bed: ServerBed) -> bool:
    return not bed.services.hub.presence("r1").watching


async def broken(watch: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        async with asyncio.timeout(30):
            await anext(watch)
    return caught.value


async def test_both_sides_detect_a_cut_connection_and_the_watch_resumes(tmp_path: Path) -> None:
    async with faulty(tmp_path) as (bed, proxy, agent), through(proxy, agent) as client:
        async with aclosing(client.watch("r1")) as watch:
            first = sequence(agent, await anext(watch))
            proxy.cut()
            error = await broken(watch)
        await until(lambda: is_not_watching(bed))
        await bed.apply(layer("b"))
        async with aclosing(client.watch("r1", DeliveryPosition("", first))) as watch:
            second = sequence(agent, await anext(watch))
    assert error.kind is Kind.UNAVAILABLE
    assert (first, second) == (1, 2)
    assert proxy.connections == 2


async def test_both_sides_close_a_stalled_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_TIMEOUT_S", 3.0)  # long enough for the first response on a busy machine
    async with faulty(tmp_path) as (bed, proxy, agent), through(proxy, agent) as client:
        async with aclosing(client.watch("r1")) as watch:
            await anext(watch)
            proxy.stall()
            error = await broken(watch)
        proxy.resume()
        await until(lambda: is_not_watching(bed))
        async with aclosing(client.watch("r1")) as watch:
            again = sequence(agent, await anext(watch))
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "no-answer")
    assert again == 1


async def test_a_client_reconnects_after_an_outage(tmp_path: Path) -> None:
    async with faulty(tmp_path) as (_, proxy, agent), through(proxy, agent) as client:
        proxy.unavailable = True
        async with aclosing(client.watch("r1")) as watch:
            error = await broken(watch)
        proxy.unavailable = False
        async with aclosing(client.watch("r1")) as watch:
            assert sequence(agent, await anext(watch)) == 1
    assert error.kind is Kind.UNAVAILABLE


async def test_a_duplicated_event_is_the_same_delivery(tmp_path: Path) -> None:
    async with faulty(tmp_path) as (_, proxy, agent), through(proxy, agent) as client:
        proxy.duplicating = True
        async with aclosing(client.watch("r1")) as watch:
            one, two = await anext(watch), await anext(watch)
    assert one == two
    assert len(proxy.events) == 2


async def test_events_out_of_order_carry_their_sequence(tmp_path: Path) -> None:
    """Receivers compare the signed sequence, because the order of events is not guaranteed."""
    async with faulty(tmp_path) as (bed, proxy, agent), through(proxy, agent) as client:
        proxy.swapping = True
        async with aclosing(client.watch("r1")) as watch:
            later = asyncio.ensure_future(anext(watch))
            await until(lambda: is_holding(proxy))
            await bed.apply(layer("b"))
            sequences = [sequence(agent, await later), sequence(agent, await anext(watch))]
    assert sequences == [2, 1]


async def is_holding(proxy: FaultProxy) -> bool:
    return proxy.holding
