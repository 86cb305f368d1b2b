"""The page size policy, and lists of large objects."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.kube.client import Transport, rest
from governor.kube.client import client as client_module
from governor.kube.client.paging import FIRST_LIMIT, MAX_LIMIT, TOO_LARGE, PageSize
from governor.kube.objects import ApiResource
from tests.unit.kube.http_bed import HttpServer, never_respond

SECRETS = ApiResource("", "v1", "Secret", "secrets", namespaced=True)

MB = 1024 * 1024
TOO_LARGE_ERROR = GovernorError(Kind.EXHAUSTED, TOO_LARGE, "too large")
DEADLINE_ERROR = GovernorError(Kind.DEADLINE, "kube-deadline", "too slow")


def after(*pages: tuple[int, int]) -> int:
    size = PageSize()
    for objects, count in pages:
        size.observed(objects, count)
    return size.limit


class TestPageSize:
    @pytest.mark.parametrize(
        ("pages", "limit"),
        [
            ([], FIRST_LIMIT),
            ([(100, 100 * 2000)], MAX_LIMIT),
            ([(100, 100 * MB)], 4),
            ([(100, 100 * 10 * MB)], 1),
            ([(0, 50)], FIRST_LIMIT),
            ([(100, 0)], MAX_LIMIT),
        ],
    )
    def test_it_follows_the_size_of_the_objects(self, pages: list[tuple[int, int]], limit: int) -> None:
        assert after(*pages) == limit

    def test_it_grows_gradually_because_large_objects_may_follow(self) -> None:
        large, small = (100, 100 * MB), (4, 4 * 2000)
        assert [after(large, *[small] * count) for count in range(5)] == [4, 20, 100, 500, 500]

    @pytest.mark.parametrize("error", [TOO_LARGE_ERROR, DEADLINE_ERROR])
    def test_a_page_that_is_too_large_or_slow_is_requested_again_in_parts(self, error: GovernorError) -> None:
        size = PageSize()
        limits = []
        while size.shrink(error):
            limits.append(size.limit)
        assert limits == [10, 1]

    def test_after_a_page_that_was_too_slow_the_next_ones_stay_small(self) -> None:
        size = PageSize()
        size.shrink(DEADLINE_ERROR)
        size.observed(10, 10 * MB // 8)
        assert size.limit == 3

    @pytest.mark.parametrize("kind", [Kind.EXHAUSTED, Kind.UNAVAILABLE, Kind.DENIED])
    def test_other_errors_do_not_change_it(self, kind: Kind) -> None:
        size = PageSize()
        assert not size.shrink(GovernorError(kind, "kube-other", "other"))
        assert size.limit == FIRST_LIMIT


class TestLists:
    def pages_of(self, count: int, object_bytes: int) -> "Pages":
        return Pages([{"metadata": {"name": f"n{number}"}, "data": "x" * object_bytes} for number in range(count)])

    async def test_pages_follow_the_size_of_the_objects(self) -> None:
        pages = self.pages_of(130, 100_000)
        async with Transport() as transport, HttpServer(pages.respond) as server:
            found = [each["metadata"]["name"] async for each in server.client(transport).list(SECRETS)]
        assert found == [f"n{number}" for number in range(130)]
        assert pages.limits == [100, 41]

    async def test_a_page_above_the_size_limit_is_requested_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rest, "MAX_BODY_BYTES", 20_000)
        pages = self.pages_of(12, 1000)
        pages.objects[0]["data"] = "x" * 15_000
        async with Transport() as transport, HttpServer(pages.respond) as server:
            found = [each["metadata"]["name"] async for each in server.client(transport).list(SECRETS)]
        assert found == [f"n{number}" for number in range(12)]
        assert pages.limits[:3] == [100, 10, 1]

    async def test_a_page_that_takes_too_long_is_requested_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_module, "PAGE_TIMEOUT_S", 0.25)
        pages = self.pages_of(3, 10)
        async with Transport() as transport, HttpServer(never_respond, pages.respond) as server, asyncio.timeout(30):
            found = [each["metadata"]["name"] async for each in server.client(transport).list(SECRETS)]
        assert found == ["n0", "n1", "n2"]
        assert pages.limits[0] < FIRST_LIMIT

    async def test_an_object_above_the_size_limit_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rest, "MAX_BODY_BYTES", 20_000)
        pages = self.pages_of(1, 30_000)
        async with Transport() as transport, HttpServer(pages.respond) as server:
            with pytest.raises(GovernorError) as caught:
                _ = [each async for each in server.client(transport).list(SECRETS)]
        assert caught.value.code == TOO_LARGE
        assert pages.limits == [100, 10, 1]


class Pages:
    """A list that an HTTP server sends page by page."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self.objects = objects
        self.limits: list[int] = []

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Send the page that the query names."""
        limit, start = int(request.query["limit"]), int(request.query.get("continue", "0"))
        self.limits.append(limit)
        end = start + limit
        metadata = {"continue": str(end)} if end < len(self.objects) else {}
        page = {"kind": "SecretList", "items": self.objects[start:end], "metadata": metadata}
        return web.Response(body=json.dumps(page).encode())
