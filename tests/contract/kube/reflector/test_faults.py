"""The reflector under faults: no event is lost or repeated, and no list is sent without need."""

import msgspec
import pytest

from governor.kube.client import Client, paging
from governor.kube.reflector.reflector import IDLE_TIMEOUT_S
from governor.process.clock import VirtualClock
from testbed.kube.api_faults import ApiRequest
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi
from tests.contract.kube.reflector.bed import (
    CONFIG_MAPS,
    FAST,
    MANAGER,
    box,
    gather_bounded,
    until_true,
    watching,
)

EXPIRED = {"kind": "Status", "message": "too old resource version", "reason": "Expired", "code": 410}
PAGE_SIZE = 3
MORE_THAN_A_PAGE = 5


def is_list(request: ApiRequest) -> bool:
    return request.method == "GET" and not request.is_watch


def is_watch(request: ApiRequest) -> bool:
    return request.is_watch


def is_later_page(request: ApiRequest) -> bool:
    return "continue" in request.query


async def create(client: Client, namespace: str, *names: str) -> None:
    await gather_bounded(client.create(CONFIG_MAPS, box(namespace, name), manager=MANAGER) for name in names)


async def test_a_truncated_event_is_delivered_once(faults: FaultyApi, client: Client, namespace: str) -> None:
    async with watching(faults.client, namespace) as watcher:
        for name, after_bytes in (("a", 0), ("b", 1), ("c", 300)):
            faults.truncate_event(after_bytes)
            await create(client, namespace, name)
            await watcher.has(name)
        await watcher.converges({"a": "0", "b": "0", "c": "0"})
        assert watcher.recorder.summary == [("Added", "a", "0"), ("Added", "b", "0"), ("Added", "c", "0")]
        assert (watcher.reflector.relists, watcher.reflector.reconnects) == (0, 3)
        assert faults.count(is_list) == 1
        timeouts = [int(request.query["timeoutSeconds"]) for request in faults.requests if is_watch(request)]
        assert len(timeouts) == 4
        assert all(300 <= seconds <= 600 for seconds in timeouts)
        assert len(set(timeouts)) > 1


async def test_an_idle_connection_is_replaced(faults: FaultyApi, client: Client, namespace: str) -> None:
    clock = VirtualClock()
    async with watching(faults.client, namespace, clock) as watcher:
        await create(client, namespace, "a")
        await watcher.converges({"a": "0"})
        faults.blackhole()
        await create(client, namespace, "b")
        await clock.advance(IDLE_TIMEOUT_S - 1)
        assert (watcher.reflector.reconnects, watcher.sizes) == (0, {"a": "0"})

        await clock.advance(1)
        await until_true(lambda: f"no data for {IDLE_TIMEOUT_S:g} s" in watcher.reflector.last_error)
        await clock.advance(FAST.max_s)
        await watcher.converges({"a": "0", "b": "0"})
        assert (watcher.reflector.relists, watcher.reflector.reconnects) == (0, 1)
        assert watcher.reflector.last_error == ""


async def test_a_watch_without_a_response_is_retried(faults: FaultyApi, client: Client, namespace: str) -> None:
    clock = VirtualClock()
    async with watching(faults.client, namespace, clock) as watcher:
        await create(client, namespace, "a")
        await watcher.converges({"a": "0"})
        faults.stall()
        faults.cut()
        await until_true(lambda: watcher.reflector.reconnects == 1)
        await clock.advance(FAST.max_s)
        await create(client, namespace, "b")
        await clock.advance(IDLE_TIMEOUT_S)
        await until_true(lambda: watcher.reflector.reconnects == 2)
        faults.resume()
        await clock.advance(FAST.max_s)
        await watcher.converges({"a": "0", "b": "0"})
        assert watcher.reflector.relists == 0


async def test_failed_lists_are_retried_until_one_succeeds(faults: FaultyApi, client: Client, namespace: str) -> None:
    await create(client, namespace, "a")
    faults.answer(429, times=2, which=is_list, headers={"Retry-After": "1"})
    faults.answer(500, times=2, which=is_list)
    async with watching(faults.client, namespace) as watcher:
        await watcher.converges({"a": "0"})
        assert faults.count(is_list) == 5
        assert (watcher.reflector.relists, watcher.reflector.delivered) == (0, 1)


@pytest.mark.parametrize("status", [429, 500, 503, 403])
async def test_a_failed_watch_is_retried_from_the_same_resource_version(
    faults: FaultyApi, client: Client, namespace: str, status: int
) -> None:
    faults.answer(status, times=2, which=is_watch)
    async with watching(faults.client, namespace) as watcher:
        await create(client, namespace, "a")
        await watcher.converges({"a": "0"})
        assert (faults.count(is_list), watcher.reflector.relists, watcher.reflector.delivered) == (1, 0, 1)
        assert len({request.query["resourceVersion"] for request in faults.requests if request.is_watch}) == 1


async def test_a_410_response_to_a_watch_relists_once(faults: FaultyApi, client: Client, namespace: str) -> None:
    await create(client, namespace, "a", "b")
    faults.answer(410, which=is_watch, content=msgspec.json.encode(EXPIRED))
    async with watching(faults.client, namespace) as watcher:
        await until_true(lambda: watcher.reflector.relists == 1)
        await create(client, namespace, "c")
        await watcher.converges({"a": "0", "b": "0", "c": "0"})
        assert (faults.count(is_list), watcher.reflector.relists, watcher.reflector.delivered) == (2, 1, 3)


@pytest.mark.parametrize("code", [410, 500])
async def test_an_error_event_in_a_watch_relists_once(
    faults: FaultyApi, client: Client, namespace: str, code: int
) -> None:
    await create(client, namespace, "a", "b")
    event = {"type": "ERROR", "object": EXPIRED | {"code": code}}
    faults.answer(200, which=is_watch, content=msgspec.json.encode(event) + b"\n")
    async with watching(faults.client, namespace) as watcher:
        await until_true(lambda: watcher.reflector.relists == 1)
        await client.delete(CONFIG_MAPS, "a", namespace)
        await watcher.converges({"b": "0"})
        assert (faults.count(is_list), watcher.reflector.relists, watcher.reflector.delivered) == (2, 1, 3)


async def test_an_expired_continue_token_restarts_the_list(
    faults: FaultyApi, client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "FIRST_LIMIT", PAGE_SIZE)
    monkeypatch.setattr(paging, "MAX_LIMIT", PAGE_SIZE)
    await create(client, namespace, *(f"box-{number}" for number in range(MORE_THAN_A_PAGE)))
    faults.answer(410, which=is_later_page, content=msgspec.json.encode(EXPIRED))
    async with watching(faults.client, namespace) as watcher:
        assert len(watcher.sizes) == watcher.reflector.delivered == MORE_THAN_A_PAGE
        assert [is_later_page(request) for request in faults.requests if is_list(request)] == [False, True, False, True]
        assert watcher.reflector.relists == 1


async def test_watches_that_close_immediately_are_retried_with_backoff(
    faults: FaultyApi, client: Client, namespace: str
) -> None:
    clock = VirtualClock()
    faults.answer(200, times=3, which=is_watch)
    async with watching(faults.client, namespace, clock) as watcher:
        await until_true(lambda: watcher.reflector.reconnects == 1 and clock.sleepers == 1)
        assert "closed it immediately" in watcher.reflector.last_error
        await create(client, namespace, "a")

        async def is_cached() -> bool:
            await clock.advance(FAST.max_s)
            return "a" in watcher.sizes

        await until(is_cached)
        assert watcher.reflector.reconnects >= 3
        assert watcher.reflector.last_error == ""
