"""The reflector while the servers themselves stop, forget or start anew; each test has a control plane of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from governor.errors import GovernorError
from governor.kube.client import Client, Transport
from governor.kube.reflector import reflector as reflector_module
from governor.process.clock import VirtualClock
from testbed.kube.api_faults import Asked
from testbed.kube.control_plane import ControlPlane, Options
from testbed.pytest_plugin import StartControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.reflector.bed import (
    BARE,
    CONFIG_MAPS,
    MANAGER,
    NAMESPACES,
    PATIENCE_S,
    SOON,
    Follower,
    box,
    each,
    eventually,
    following,
    running,
    until_true,
)

HERE = "here"
MORE_THAN_A_PAGE = 600


async def prepared(plane: ControlPlane, transport: Transport) -> Client:
    """An administrator, and a namespace for the boxes."""
    client = Client(transport, admin_of(plane), BARE)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HERE}}
    await client.create(NAMESPACES, namespace, manager=MANAGER)
    return client


@asynccontextmanager
async def proxied(plane: ControlPlane, transport: Transport) -> AsyncIterator[tuple[FaultyApi, Client]]:
    """A proxy, and a client that goes through it."""
    async with FaultyApi(plane, transport) as faults:
        yield faults, Client(transport, faults.access, BARE)


async def create(client: Client, *names: str) -> None:
    await each(client.create(CONFIG_MAPS, box(HERE, name), manager=MANAGER) for name in names)


async def grow(client: Client, name: str, size: int) -> None:
    await client.apply(CONFIG_MAPS, box(HERE, name, size), manager=MANAGER, force=True)


def watched_from(faults: FaultyApi) -> list[str]:
    """The positions from which watches were asked for."""
    return [asked.query["resourceVersion"] for asked in faults.requests if asked.is_watch]


def is_list(asked: Asked) -> bool:
    return asked.path.endswith("/configmaps") and not asked.is_watch


def is_later_page(asked: Asked) -> bool:
    return "continue" in asked.query


async def forget_history(plane: ControlPlane) -> None:
    """Compact etcd, and start the API server anew: it remembers the last events of each kind itself."""
    await plane.etcd.compact()
    await plane.api.kill()
    await plane.api.start()


async def test_a_compacted_history_costs_one_list_and_tells_the_differences(
    start_api: StartControlPlane, transport: Transport
) -> None:
    plane = await start_api()
    client = await prepared(plane, transport)
    await create(client, "stays", "goes", "grows")
    async with proxied(plane, transport) as (faults, through), following(through, HERE) as follower:
        faults.gone = True
        faults.cut()
        before = len(follower.record.events)
        await grow(client, "grows", 1)
        await client.delete(CONFIG_MAPS, "goes", HERE)
        await create(client, "comes")
        await forget_history(plane)
        faults.gone = False

        await follower.holds({"stays": "0", "grows": "1", "comes": "0"})
        assert sorted(follower.record.story[before:]) == [
            ("Added", "comes", "0"),
            ("Changed", "grows", "1"),
            ("Removed", "goes", "0"),
        ]
        assert follower.reflector.relists == 1


async def test_a_list_whose_history_is_compacted_between_two_pages_begins_again(
    start_api: StartControlPlane, transport: Transport
) -> None:
    plane = await start_api()
    client = await prepared(plane, transport)
    await create(client, *(f"box-{number}" for number in range(MORE_THAN_A_PAGE)))
    clock = VirtualClock()
    async with proxied(plane, transport) as (faults, through):
        faults.answer(403, which=is_later_page)
        follower = Follower(through, HERE, clock)
        async with running(follower.reflector.run()):
            await until_true(lambda: bool(follower.reflector.last_error))
            await client.delete(CONFIG_MAPS, "box-0", HERE)
            await forget_history(plane)

            async def synced() -> bool:
                await clock.advance(SOON.max_s)
                return follower.reflector.is_synced

            await until(synced, within_s=PATIENCE_S)
            assert len(follower.sizes) == MORE_THAN_A_PAGE - 1
            assert follower.record.told == dict(follower.reflector.store)
            assert follower.reflector.relists == 1


async def test_bookmarks_keep_a_watch_without_events_ahead_of_compaction(
    start_api: StartControlPlane, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server sends a bookmark shortly before the time that it was given has passed.
    monkeypatch.setattr(reflector_module, "WATCH_TIMEOUT_S", (3, 3))
    plane = await start_api()
    client = await prepared(plane, transport)
    await create(client, "a")
    numbers = count()
    async with proxied(plane, transport) as (faults, through), following(through, HERE) as follower:
        await until_true(lambda: bool(watched_from(faults)))
        listed_at = int(watched_from(faults)[0])

        async def is_ahead() -> bool:
            # A bookmark tells only of what happens while its watch is open: not of what was there when it began.
            await client.create(CONFIG_MAPS, box("default", f"elsewhere-{next(numbers)}"), manager=MANAGER)
            return int(watched_from(faults)[-1]) > listed_at

        await until(is_ahead, within_s=PATIENCE_S)
        await plane.etcd.compact()
        faults.cut()
        await create(client, "b")
        await follower.holds({"a": "0", "b": "0"})
        assert follower.record.story == [("Added", "a", "0"), ("Added", "b", "0")]
        assert (faults.count(is_list), follower.reflector.relists) == (1, 0)


async def test_an_api_server_that_is_killed_and_started_again_is_followed_on(
    start_api: StartControlPlane, transport: Transport
) -> None:
    plane = await start_api()
    client = await prepared(plane, transport)
    await create(client, "a", "b")
    async with following(client, HERE) as follower:
        await plane.api.kill()
        await until_true(lambda: bool(follower.reflector.last_error))
        await plane.api.start()
        await grow(client, "a", 1)
        await client.delete(CONFIG_MAPS, "b", HERE)
        await follower.holds({"a": "1"})
        assert follower.record.story[2:] == [("Changed", "a", "1"), ("Removed", "b", "0")]
        assert follower.reflector.relists <= 1


async def test_a_paused_store_delays_and_loses_nothing(start_api: StartControlPlane, transport: Transport) -> None:
    plane = await start_api(Options(api_flags=("--request-timeout=5s",)))
    client = await prepared(plane, transport)
    await create(client, "a")
    async with following(client, HERE) as before:
        await plane.etcd.pause()
        with pytest.raises(GovernorError):
            await client.get(CONFIG_MAPS, "a", HERE)
        late = Follower(client, HERE)
        async with running(late.reflector.run()):
            await until_true(lambda: bool(late.reflector.last_error))
            plane.etcd.resume()
            await eventually(lambda: grow(client, "b", 0))
            for follower in (before, late):
                await follower.holds({"a": "0", "b": "0"})
                assert follower.record.story == [("Added", "a", "0"), ("Added", "b", "0")]
