"""The reflector while connections and requests fail: nothing lost, nothing told twice, and no list without need."""

from itertools import count

import msgspec
import pytest

from governor.kube.client import Client, Transport
from governor.kube.reflector import reflector as reflector_module
from governor.kube.reflector.reflector import IDLE_TIMEOUT_S
from governor.process.clock import VirtualClock
from testbed.kube.api_faults import Asked
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.reflector.bed import (
    BARE,
    CONFIG_MAPS,
    MANAGER,
    PATIENCE_S,
    SOON,
    box,
    each,
    following,
    until_true,
)

TOO_OLD = {"kind": "Status", "message": "too old resource version", "reason": "Expired", "code": 410}
MORE_THAN_A_PAGE = 600


def is_list(asked: Asked) -> bool:
    return asked.method == "GET" and not asked.is_watch


def is_watch(asked: Asked) -> bool:
    return asked.is_watch


def is_later_page(asked: Asked) -> bool:
    return "continue" in asked.query


async def create(client: Client, namespace: str, *names: str) -> None:
    await each(client.create(CONFIG_MAPS, box(namespace, name), manager=MANAGER) for name in names)


async def test_an_event_that_is_cut_is_told_once(faults: FaultyApi, client: Client, namespace: str) -> None:
    async with following(faults.client, namespace) as follower:
        for name, after_bytes in (("a", 0), ("b", 1), ("c", 300)):
            faults.cut_event(after_bytes)
            await create(client, namespace, name)
            await follower.has(name)
        await follower.holds({"a": "0", "b": "0", "c": "0"})
        assert follower.record.story == [("Added", "a", "0"), ("Added", "b", "0"), ("Added", "c", "0")]
        assert (follower.reflector.relists, follower.reflector.reconnects) == (0, 3)
        assert faults.count(is_list) == 1
        lasting = [int(asked.query["timeoutSeconds"]) for asked in faults.requests if is_watch(asked)]
        assert len(lasting) == 4
        assert all(300 <= seconds <= 600 for seconds in lasting)
        assert len(set(lasting)) > 1


async def test_a_silent_connection_is_replaced(faults: FaultyApi, client: Client, namespace: str) -> None:
    clock = VirtualClock()
    async with following(faults.client, namespace, clock) as follower:
        await create(client, namespace, "a")
        await follower.holds({"a": "0"})
        faults.silence()
        await create(client, namespace, "b")
        await clock.advance(IDLE_TIMEOUT_S - 1)
        assert (follower.reflector.reconnects, follower.sizes) == (0, {"a": "0"})

        await clock.advance(1)
        await until_true(lambda: f"no data for {IDLE_TIMEOUT_S:g} s" in follower.reflector.last_error)
        await clock.advance(SOON.max_s)
        await follower.holds({"a": "0", "b": "0"})
        assert (follower.reflector.relists, follower.reflector.reconnects) == (0, 1)
        assert follower.reflector.last_error == ""


async def test_a_server_that_never_begins_to_answer_a_watch_is_asked_again(
    faults: FaultyApi, client: Client, namespace: str
) -> None:
    clock = VirtualClock()
    async with following(faults.client, namespace, clock) as follower:
        await create(client, namespace, "a")
        await follower.holds({"a": "0"})
        faults.stall()
        faults.cut()
        await until_true(lambda: follower.reflector.reconnects == 1)
        await clock.advance(SOON.max_s)
        await create(client, namespace, "b")
        await clock.advance(IDLE_TIMEOUT_S)
        await until_true(lambda: follower.reflector.reconnects == 2)
        faults.flow()
        await clock.advance(SOON.max_s)
        await follower.holds({"a": "0", "b": "0"})
        assert follower.reflector.relists == 0


async def test_refused_lists_are_repeated_until_one_is_answered(
    faults: FaultyApi, client: Client, namespace: str
) -> None:
    await create(client, namespace, "a")
    faults.answer(429, times=2, which=is_list, headers={"Retry-After": "1"})
    faults.answer(500, times=2, which=is_list)
    async with following(faults.client, namespace) as follower:
        await follower.holds({"a": "0"})
        assert faults.count(is_list) == 5
        assert (follower.reflector.relists, follower.reflector.delivered) == (0, 1)


@pytest.mark.parametrize("status", [429, 500, 503, 403])
async def test_a_refused_watch_is_asked_for_again_from_the_same_place(
    faults: FaultyApi, client: Client, namespace: str, status: int
) -> None:
    faults.answer(status, times=2, which=is_watch)
    async with following(faults.client, namespace) as follower:
        await create(client, namespace, "a")
        await follower.holds({"a": "0"})
        assert (faults.count(is_list), follower.reflector.relists, follower.reflector.delivered) == (1, 0, 1)
        assert len({asked.query["resourceVersion"] for asked in faults.requests if asked.is_watch}) == 1


async def test_a_position_refused_by_status_is_given_up_for_one_list(
    faults: FaultyApi, client: Client, namespace: str
) -> None:
    await create(client, namespace, "a", "b")
    faults.answer(410, which=is_watch, content=msgspec.json.encode(TOO_OLD))
    async with following(faults.client, namespace) as follower:
        await until_true(lambda: follower.reflector.relists == 1)
        await create(client, namespace, "c")
        await follower.holds({"a": "0", "b": "0", "c": "0"})
        assert (faults.count(is_list), follower.reflector.relists, follower.reflector.delivered) == (2, 1, 3)


@pytest.mark.parametrize("code", [410, 500])
async def test_a_position_refused_by_event_is_given_up_for_one_list(
    faults: FaultyApi, client: Client, namespace: str, code: int
) -> None:
    await create(client, namespace, "a", "b")
    event = {"type": "ERROR", "object": TOO_OLD | {"code": code}}
    faults.answer(200, which=is_watch, content=msgspec.json.encode(event) + b"\n")
    async with following(faults.client, namespace) as follower:
        await until_true(lambda: follower.reflector.relists == 1)
        await client.delete(CONFIG_MAPS, "a", namespace)
        await follower.holds({"b": "0"})
        assert (faults.count(is_list), follower.reflector.relists, follower.reflector.delivered) == (2, 1, 3)


async def test_an_expired_page_begins_the_list_again(
    api: ControlPlane, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    client = Client(transport, admin_of(api), BARE)
    await create(client, namespace, *(f"box-{number}" for number in range(MORE_THAN_A_PAGE)))
    faults.answer(410, which=is_later_page, content=msgspec.json.encode(TOO_OLD))
    async with following(faults.client, namespace) as follower:
        assert len(follower.sizes) == follower.reflector.delivered == MORE_THAN_A_PAGE
        assert [is_later_page(asked) for asked in faults.requests if is_list(asked)] == [False, True, False, True]
        assert follower.reflector.relists == 1


async def test_watches_that_end_at_once_are_not_asked_for_without_pause(
    faults: FaultyApi, client: Client, namespace: str
) -> None:
    clock = VirtualClock()
    faults.answer(200, times=3, which=is_watch)
    async with following(faults.client, namespace, clock) as follower:
        await until_true(lambda: follower.reflector.reconnects == 1 and clock.sleepers == 1)
        assert "closed it immediately" in follower.reflector.last_error
        await create(client, namespace, "a")

        async def told() -> bool:
            await clock.advance(SOON.max_s)
            return "a" in follower.sizes

        await until(told)
        assert follower.reflector.reconnects >= 3
        assert follower.reflector.last_error == ""


async def test_a_watch_that_ends_in_time_is_continued_from_the_last_bookmark(
    faults: FaultyApi, client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server sends a bookmark shortly before the time that it was given has passed.
    monkeypatch.setattr(reflector_module, "WATCH_TIMEOUT_S", (3, 3))
    numbers = count()
    async with following(faults.client, namespace) as follower:

        async def is_ahead() -> bool:
            # A bookmark tells only of what happens while its watch is open: not of what was there when it began.
            await create(client, "default", f"{namespace}-elsewhere-{next(numbers)}")
            versions = [int(asked.query["resourceVersion"]) for asked in faults.requests if asked.is_watch]
            return bool(versions) and versions[-1] > versions[0]

        await until(is_ahead, within_s=PATIENCE_S)
        assert (faults.count(is_list), follower.reflector.relists, follower.reflector.delivered) == (1, 0, 0)
        await create(client, namespace, "a")
        await follower.holds({"a": "0"})
