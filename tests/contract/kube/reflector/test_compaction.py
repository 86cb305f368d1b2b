"""The reflector while etcd is compacted: expired lists and watches start over, and bookmarks avoid that.

Etcd of the shared server is compacted; no test reads the history of another one.
"""

from itertools import count

import pytest

from governor.kube.client import Client, Limits, Transport, paging
from governor.kube.reflector import reflector as reflector_module
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.limiter import Rate
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.reflector.bed import (
    CONFIG_MAPS,
    EVENTS,
    FAST,
    MANAGER,
    WITHIN_S,
    Watcher,
    box,
    event_box,
    gather_bounded,
    running,
    until_true,
    watching,
)

PAGE_SIZE = 3
MORE_THAN_A_PAGE = 5


async def create(client: Client, namespace: str, *names: str) -> None:
    await gather_bounded(client.create(EVENTS, event_box(namespace, name), manager=MANAGER) for name in names)


def watched_from(faults: FaultyApi) -> list[int]:
    """Return the resourceVersion of each watch request."""
    return [int(request.query["resourceVersion"]) for request in faults.requests if request.is_watch]


def is_list(request: ApiRequest) -> bool:
    return request.method == "GET" and not request.is_watch


def is_later_page(request: ApiRequest) -> bool:
    return "continue" in request.query


async def test_a_compacted_history_costs_one_list_and_delivers_the_differences(
    api: ControlPlane, client: Client, faults: FaultyApi, namespace: str
) -> None:
    await create(client, namespace, "kept", "deleted", "changed")
    async with watching(faults.client, namespace, resource=EVENTS) as watcher:
        faults.unavailable = True
        faults.cut()
        before = len(watcher.recorder.events)
        await client.apply(EVENTS, event_box(namespace, "changed", 1), manager=MANAGER, force=True)
        await client.delete(EVENTS, "deleted", namespace)
        await create(client, namespace, "created")
        await api.etcd.compact()
        faults.unavailable = False

        await watcher.converges({"kept": "0", "changed": "1", "created": "0"})
        assert sorted(watcher.recorder.summary[before:]) == [
            ("Added", "created", "0"),
            ("Changed", "changed", "1"),
            ("Removed", "deleted", "0"),
        ]
        assert watcher.reflector.relists == 1


async def test_a_list_compacted_between_two_pages_restarts(
    api: ControlPlane, client: Client, faults: FaultyApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "FIRST_LIMIT", PAGE_SIZE)
    monkeypatch.setattr(paging, "MAX_LIMIT", PAGE_SIZE)
    await create(client, namespace, *(f"box-{number}" for number in range(MORE_THAN_A_PAGE)))
    clock = VirtualClock()
    faults.answer(403, which=is_later_page)
    watcher = Watcher(faults.client, namespace, clock, resource=EVENTS)
    async with running(watcher.reflector.run()):
        await until_true(lambda: bool(watcher.reflector.last_error))
        await client.delete(EVENTS, "box-0", namespace)
        await api.etcd.compact()

        async def synced() -> bool:
            await clock.advance(FAST.max_s)
            return watcher.reflector.is_synced

        await until(synced, within_s=WITHIN_S)
        assert len(watcher.sizes) == MORE_THAN_A_PAGE - 1
        assert watcher.recorder.seen == dict(watcher.reflector.store)
        assert watcher.reflector.relists == 1


async def test_a_watch_without_events_continues_from_its_last_bookmark_after_compaction(
    api: ControlPlane,
    client: Client,
    transport: Transport,
    faults: FaultyApi,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The server sends a bookmark shortly before timeoutSeconds.
    monkeypatch.setattr(reflector_module, "WATCH_TIMEOUT_S", (3, 3))
    await client.create(CONFIG_MAPS, box(namespace, "a"), manager=MANAGER)
    slow = Client(transport, admin_of(api), Limits(rate=Rate(per_s=5.0, burst=1)))
    numbers = count()
    async with watching(faults.client, namespace) as watcher:

        async def is_ahead() -> bool:
            # A bookmark covers only writes during its watch, not those before it began.
            elsewhere = box("default", f"{namespace}-elsewhere-{next(numbers)}")
            await slow.create(CONFIG_MAPS, elsewhere, manager=MANAGER)
            versions = watched_from(faults)
            return bool(versions) and versions[-1] > versions[0]

        await until(is_ahead, within_s=WITHIN_S)
        assert (faults.count(is_list), watcher.reflector.delivered) == (1, 1)
        await api.etcd.compact()
        faults.cut()
        await client.create(CONFIG_MAPS, box(namespace, "b"), manager=MANAGER)
        await watcher.converges({"a": "0", "b": "0"})
        assert watcher.recorder.summary == [("Added", "a", "0"), ("Added", "b", "0")]
        assert (faults.count(is_list), watcher.reflector.relists) == (1, 0)
