"""Responses of hostile or broken servers: each is a clear error, and every wait is bounded."""

import asyncio
import datetime
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.kube.client import Transport
from governor.kube.client.discovery import MISS_TTL_S, Discovery
from governor.kube.client.transport import Request, Response
from governor.kube.errors import MAX_RETRY_AFTER_S, ApiError, Cause, Status, StatusDetails, parse_status, retry_after_s
from governor.kube.objects import ApiResource
from governor.kube.reflector import Reflector, View
from governor.kube.reflector.list_watch import ListWatch
from governor.kube.reflector.store import Event, WritableStore
from governor.process.clock import SystemClock, VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from testbed.waiting import until
from tests.unit.kube.client.test_discovery import APPS, CORE, Api, aggregated
from tests.unit.kube.http_bed import HttpServer, never_respond

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
DEEP = b'{"kind":"Status","x":' + b"[" * 100_000


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    "header",
    [
        "99999999",
        "9" * 400,
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2300",
        "Mon, 99999999999999999999 Jan 2020 00:00:00 GMT",
        "Mon, 01 Jan 2020 00:00:00 +9999999999999",
        "-5",
        "garbage",
    ],
)
def test_a_requested_wait_is_bounded_for_any_header(header: str) -> None:
    wait_s = retry_after_s(header, Status(), NOW)
    assert wait_s is None or 0 <= wait_s <= MAX_RETRY_AFTER_S


def test_a_requested_wait_of_400_digits_in_a_status_is_bounded() -> None:
    status = parse_status(b'{"kind":"Status","details":{"retryAfterSeconds":' + b"9" * 400 + b"}}")
    assert retry_after_s("", status, NOW) == MAX_RETRY_AFTER_S


def test_an_error_body_nested_too_deeply_is_not_from_the_api_server() -> None:
    assert not parse_status(DEEP).from_server


def test_an_error_with_a_thousand_long_causes_is_truncated() -> None:
    causes = tuple(Cause("FieldValueInvalid", "m" * 5000, f"spec.{number}") for number in range(1000))
    error = ApiError("PATCH /x", 422, Status("no", "R" * 10_000, 422, StatusDetails(causes)))
    assert len(str(error)) < 50_000
    assert len(error.code) < 100
    assert len(error.causes) == 1000


@pytest.mark.parametrize("location", ["http://[", "//[x", "https://a:b@c:99999999/"])
async def test_a_redirect_to_an_invalid_location_is_an_error(location: str) -> None:
    async with Transport() as transport, HttpServer(web.Response(status=302, headers={"Location": location})) as server:
        with pytest.raises(ApiError, match="not followed"):
            await server.client(transport).get(CONFIG_MAPS, "a", "b")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"metadata":null}', b'{"a":' + b"[" * 100_000, b'"\xff"']
)
async def test_a_response_that_is_no_object_is_an_error(body: bytes) -> None:
    async with Transport() as transport, HttpServer(web.Response(body=body)) as server:
        client = server.client(transport)
        with pytest.raises(GovernorError, match="not from a Kubernetes API"):
            await client.get(CONFIG_MAPS, "a", "b")
        with pytest.raises(GovernorError, match="not a discovery document"):
            await client.discovery.find("", "Pod")
        with pytest.raises(GovernorError, match="not from a Kubernetes API"):
            _ = [each async for each in client.list(CONFIG_MAPS)]


@pytest.mark.parametrize("name", ["\ud800", "a\udfff"])
async def test_a_name_with_a_lone_surrogate_is_rejected(name: str) -> None:
    with pytest.raises(GovernorError, match="is not an object name"):
        CONFIG_MAPS.path("default", name)


async def test_a_kind_is_not_reported_missing_when_discovery_fails() -> None:
    api = Api(_api=CORE, _apis=aggregated())
    clock = VirtualClock()
    failing = False

    async def send(request: Request) -> Response:
        if failing:
            raise GovernorError(Kind.UNAVAILABLE, "kube-unreachable", "cannot connect")
        return await api.send(request)

    discovery = Discovery(send, clock, Transport().discovery_cache)
    await discovery.find("", "Pod")
    await clock.advance(MISS_TTL_S)
    failing = True
    for _ in range(3):
        with pytest.raises(GovernorError) as caught:
            await discovery.find("apps", "Deployment")
        assert caught.value.kind is Kind.UNAVAILABLE
    failing, api.documents["/apis"] = False, aggregated(APPS)
    assert (await discovery.find("apps", "Deployment")).plural == "deployments"


class Thing(View, frozen=True):
    pass


def list_watch(events: list[Event[Thing]]) -> ListWatch[Thing]:
    return ListWatch(CONFIG_MAPS, Thing, WritableStore({}), events.append)


def page(*names: str) -> bytes:
    items = [{"metadata": {"name": name, "uid": name, "resourceVersion": "5"}} for name in names]
    return msgspec.json.encode({"kind": "ConfigMapList", "metadata": {"resourceVersion": "5"}, "items": items})


def test_an_event_without_a_resource_version_keeps_the_current_one() -> None:
    watcher = list_watch([])
    watcher.receive_page(page("a"))
    with pytest.raises(GovernorError, match="resourceVersion"):
        watcher.receive_line(b'{"type":"ADDED","object":{"metadata":{"name":"b"}}}')
    assert not watcher.is_listing
    assert watcher.watch_query(1)["resourceVersion"] == "5"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"<html>",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":{}}',
        b'{"type":"EXPLODED","object":{"metadata":{"name":"a","resourceVersion":"9"}}}',
        b'{"type":"BOOKMARK","object":{"metadata":{}}}',
        b'{"type":"BOOKMARK","object":{}}',
        b'{"type":"ERROR","object":' + b"[" * 100_000,
        b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}',
        b'{"type":"MODIFIED","object":' + DEEP,
    ],
)
def test_invalid_events_change_nothing(line: bytes) -> None:
    events: list[Event[Thing]] = []
    watcher = list_watch(events)
    watcher.receive_page(page("a"))
    with pytest.raises(GovernorError):
        watcher.receive_line(line)
    assert len(events) == 1
    assert not watcher.is_listing


async def test_a_watch_that_always_ends_after_one_event_is_retried_with_backoff_and_leaks_nothing() -> None:
    bookmark = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"6"}}}'
    clock = RecordingClock()
    backoff = Backoff(initial_s=0.5, max_s=30.0)
    async with (
        Transport() as transport,
        HttpServer(web.Response(body=page("a")), web.Response(body=bookmark + b"\n")) as server,
    ):
        reflector = Reflector(
            server.client(transport), CONFIG_MAPS, Thing, clock=clock, on_event=lambda _: None, backoff=backoff
        )
        task = asyncio.create_task(reflector.run())

        async def reconnected(times: int) -> bool:
            assert not task.done(), task
            return reflector.reconnects >= times

        await until(lambda: reconnected(20))
        before = open_files()
        await until(lambda: reconnected(500))
        after = open_files()
        task.cancel()
        await asyncio.wait({task})
    assert len([wait_s for wait_s in clock.waits_s if 0.5 <= wait_s <= 30.0]) >= reflector.reconnects - 1
    assert after <= before + 5


class RecordingClock(SystemClock):
    """Records sleeps instead of sleeping; the long sleeps of watchdogs never end."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds > 100:
            await asyncio.Event().wait()
        self.waits_s.append(seconds)
        await asyncio.sleep(0)


async def test_a_request_cancelled_at_any_point_leaves_no_connection() -> None:
    async with Transport() as transport, HttpServer(never_respond) as server:
        client = server.client(transport)
        before = open_files()
        for delay in range(60):
            task = asyncio.create_task(client.get(CONFIG_MAPS, "a", "b"))
            for _ in range(delay):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async def closed() -> bool:
            return open_files() <= before + 4

        await until(closed)
