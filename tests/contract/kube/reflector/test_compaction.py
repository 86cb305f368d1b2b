"""The reflector while servers stop, compact or restart; each test starts its own control plane."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from governor.errors import GovernorError
from governor.kube.client import Client, Transport
from governor.kube.reflector import reflector as reflector_module
from governor.process.clock import VirtualClock
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane, Options
from testbed.pytest_plugin import StartControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.reflector.bed import (
    CONFIG_MAPS,
    FAST,
    MANAGER,
    NAMESPACES,
    UNLIMITED,
    WITHIN_S,
    Watcher,
    box,
    eventually,
    gather_bounded,
    running,
    until_true,
    watching,
)

NAMESPACE = "here"
MORE_THAN_A_PAGE = 600


async def prepare(plane: ControlPlane, transport: Transport) -> Client:
    """Create the namespace of the test and return an administrator's client."""
    client = Client(transport, admin_of(plane), UNLIMITED)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await client.create(NAMESPACES, namespace, manager=MANAGER)
    return client


@asynccontextmanager
async def proxied(plane: ControlPlane, transport: Transport) -> AsyncIterator[tuple[FaultyApi, Client]]:
    """Start a fault-injecting proxy and yield it with a client that uses it."""
    async with FaultyApi(plane, transport) as faults:
        yield faults, Client(transport, faults.access, UNLIMITED)


async def create(client: Client, *names: str) -> None:
    await gather_bounded(client.create(CONFIG_MAPS, box(NAMESPACE, name), manager=MANAGER) for name in names)


async def grow(client: Client, name: str, size: int) -> None:
    await client.apply(CONFIG_MAPS, box(NAMESPACE, name, size), manager=MANAGER, force=True)


def watched_from(faults: FaultyApi) -> list[str]:
    """Return the resourceVersion of each watch request."""
    return [request.query["resourceVersion"] for request in faults.requests if request.is_watch]


def is_list(request: ApiRequest) -> bool:
    return request.path.endswith("/configmaps") and not request.is_watch


def is_later_page(request: ApiRequest) -> bool:
    return "continue" in request.query


async def compact_history(plane: ControlPlane) -> None:
    """Compact etcd and restart the API server, whose watch cache holds the latest events of each kind."""
    await plane.etcd.compact()
    await plane.api.kill()
    await plane.api.start()


async def test_a_compacted_history_costs_one_list_and_delivers_the_differences(
    start_api: StartControlPlane, transport: Transport
) -> None:
    plane = await start_api()
    client = await prepare(plane, transport)
    await create(client, "kept", "deleted", "changed")
    async with proxied(plane, transport) as (faults, proxied_client), watching(proxied_client, NAMESPACE) as watcher:
        faults.unavailable = True
        faults.cut()
        before = len(watcher.recorder.events)
        await grow(client, "changed", 1)
        await client.delete(CONFIG_MAPS, "deleted", NAMESPACE)
        await create(client, "created")
        await compact_history(plane)
        faults.unavailable = False

        await watcher.converges({"kept": "0", "changed": "1", "created": "0"})
        assert sorted(watcher.recorder.summary[before:]) == [
            ("Added", "created", "0"),
            ("Changed", "changed", "1"),
            ("Removed", "deleted", "0"),
        ]
        assert watcher.reflector.relists == 1


async def test_a_list_compacted_between_two_pages_restarts(start_api: StartControlPlane, transport: Transport) -> None:
    plane = await start_api()
    client = await prepare(plane, transport)
    await create(client, *(f"box-{number}" for number in range(MORE_THAN_A_PAGE)))
    clock = VirtualClock()
    async with proxied(plane, transport) as (faults, proxied_client):
        faults.answer(403, which=is_later_page)
        watcher = Watcher(proxied_client, NAMESPACE, clock)
        async with running(watcher.reflector.run()):
            await until_true(lambda: bool(watcher.reflector.last_error))
            await client.delete(CONFIG_MAPS, "box-0", NAMESPACE)
            await compact_history(plane)

            async def synced() -> bool:
                await clock.advance(FAST.max_s)
                return watcher.reflector.is_synced

            await until(synced, within_s=WITHIN_S)
            assert len(watcher.sizes) == MORE_THAN_A_PAGE - 1
            assert watcher.recorder.seen == dict(watcher.reflector.store)
            assert watcher.reflector.relists == 1


async def test_bookmarks_keep_a_watch_without_events_ahead_of_compaction(
    start_api: StartControlPlane, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server sends a bookmark shortly before timeoutSeconds.
    monkeypatch.setattr(reflector_module, "WATCH_TIMEOUT_S", (3, 3))
    plane = await start_api()
    client = await prepare(plane, transport)
    await create(client, "a")
    numbers = count()
    async with proxied(plane, transport) as (faults, proxied_client), watching(proxied_client, NAMESPACE) as watcher:
        await until_true(lambda: bool(watched_from(faults)))
        listed_at = int(watched_from(faults)[0])

        async def is_ahead() -> bool:
            # A bookmark covers only writes during its watch, not those before it began.
            await client.create(CONFIG_MAPS, box("default", f"elsewhere-{next(numbers)}"), manager=MANAGER)
            return int(watched_from(faults)[-1]) > listed_at

        await until(is_ahead, within_s=WITHIN_S)
        await plane.etcd.compact()
        faults.cut()
        await create(client, "b")
        await watcher.converges({"a": "0", "b": "0"})
        assert watcher.recorder.summary == [("Added", "a", "0"), ("Added", "b", "0")]
        assert (faults.count(is_list), watcher.reflector.relists) == (1, 0)


async def test_a_watch_resumes_after_the_api_server_is_killed_and_restarted(
    start_api: StartControlPlane, transport: Transport
) -> None:
    plane = await start_api()
    client = await prepare(plane, transport)
    await create(client, "a", "b")
    async with watching(client, NAMESPACE) as watcher:
        await plane.api.kill()
        await until_true(lambda: bool(watcher.reflector.last_error))
        await plane.api.start()
        await grow(client, "a", 1)
        await client.delete(CONFIG_MAPS, "b", NAMESPACE)
        await watcher.converges({"a": "1"})
        assert watcher.recorder.summary[2:] == [("Changed", "a", "1"), ("Removed", "b", "0")]
        assert watcher.reflector.relists <= 1


async def test_a_paused_etcd_delays_events_and_loses_none(start_api: StartControlPlane, transport: Transport) -> None:
    plane = await start_api(Options(api_flags=("--request-timeout=5s",)))
    client = await prepare(plane, transport)
    await create(client, "a")
    async with watching(client, NAMESPACE) as before:
        await plane.etcd.pause()
        with pytest.raises(GovernorError):
            await client.get(CONFIG_MAPS, "a", NAMESPACE)
        late = Watcher(client, NAMESPACE)
        async with running(late.reflector.run()):
            await until_true(lambda: bool(late.reflector.last_error))
            plane.etcd.resume()
            await eventually(lambda: grow(client, "b", 0))
            for watcher in (before, late):
                await watcher.converges({"a": "0", "b": "0"})
                assert watcher.recorder.summary == [("Added", "a", "0"), ("Added", "b", "0")]
