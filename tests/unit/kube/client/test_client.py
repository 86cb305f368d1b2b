"""The client against hostile servers: redirects, oversized bodies, malformed objects, broken streams."""

import asyncio
import functools
import gzip
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request, Transport, rest, retry
from governor.kube.client.body import LineSplitter
from governor.kube.client.transport import Response
from governor.kube.config.access import Access
from governor.kube.errors import ApiError
from governor.kube.objects import ApiResource, ObjectRef, ref_of
from governor.process.proxy import Proxy
from governor.values.secret import Secret
from tests.unit.kube.http_bed import QUICK, HttpServer, drop_connection, failure

GET = Request("GET", "/api")
PODS = ApiResource("", "v1", "Pod", "pods", namespaced=True)
TOKEN = "very-secret-token"


async def rejected(awaited: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await awaited
    return caught.value


class TestHostileResponses:
    async def test_a_redirect_is_not_followed(self, transport: Transport) -> None:
        async with HttpServer(web.Response(body=b"{}")) as other:
            location = f"{other.url}/login?state=hunter2"
            async with HttpServer(web.Response(status=302, headers={"Location": location})) as server:
                error = await rejected(server.client(transport, token=Secret(TOKEN)).send(GET))
            assert "redirects to http://127.0.0.1" in str(error)
            assert "hunter2" not in str(error)
            assert other.requests == []

    async def test_a_token_echoed_in_an_error_page_is_masked(self, transport: Transport) -> None:
        async def echo(request: web.Request) -> web.StreamResponse:
            return web.Response(status=400, text=f"<p>bad header: {request.headers['Authorization']}</p>")

        async with HttpServer(echo) as server:
            error = await rejected(server.client(transport, token=Secret(TOKEN)).send(GET))
        assert "bad header: Bearer ***" in str(error)

    async def test_a_body_above_the_limit_is_not_read_to_its_end(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rest, "MAX_BODY_BYTES", 100_000)

        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(bytes(10_000))

        async with HttpServer(endless) as server:
            error = await rejected(server.client(transport).send(GET))
        assert (error.kind, error.code) == (Kind.EXHAUSTED, "kube-answer-size")

    async def test_a_gzip_bomb_is_not_decompressed(self, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rest, "MAX_BODY_BYTES", 100_000)
        bomb = web.Response(body=gzip.compress(bytes(10_000_000)), headers={"Content-Encoding": "gzip"})
        async with HttpServer(bomb) as server:
            error = await rejected(server.client(transport).send(GET))
        assert error.code == "kube-answer-size"

    @pytest.mark.parametrize(
        "bad",
        [
            web.Response(status=502, body=bytes(2_000_000)),
            web.Response(status=502, headers={"Content-Encoding": "br"}, body=b"x"),
        ],
    )
    async def test_an_error_response_with_an_unreadable_body_is_still_an_api_error(
        self, transport: Transport, bad: web.Response
    ) -> None:
        async with HttpServer(bad) as server:
            error = await rejected(server.client(transport).send(GET))
        assert isinstance(error, ApiError)
        assert (error.status, error.from_server) == (502, False)

    async def test_a_gzip_body_is_decompressed(self, transport: Transport) -> None:
        compressed = web.Response(body=gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"})
        async with HttpServer(compressed) as server:
            assert await server.client(transport).send(GET) == b'{"a": 1}'

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b"<html>", b"\xff", b"null"])
    async def test_a_response_that_is_no_object_is_an_error(self, transport: Transport, body: bytes) -> None:
        async with HttpServer(web.Response(body=body)) as server:
            error = await rejected(server.client(transport).get(PODS, "a", "n"))
        assert (error.kind, error.code) == (Kind.INTERNAL, "kube-answer")

    async def test_a_failure_status_in_a_200_response_is_an_error(self, transport: Transport) -> None:
        async with HttpServer(web.Response(body=failure(403, "Forbidden"))) as server:
            client = server.client(transport)
            for call in (client.get(PODS, "a", "n"), client.delete(PODS, "a", "n")):
                error = await rejected(call)
                assert error.kind is Kind.DENIED
                assert isinstance(error, ApiError)

    async def test_a_success_status_is_a_success(self, transport: Transport) -> None:
        success = {"kind": "Status", "status": "Success"}
        async with HttpServer(web.Response(body=json.dumps(success).encode())) as server:
            await server.client(transport).delete(PODS, "a", "n")

    @pytest.mark.parametrize(
        "page",
        [
            {"kind": "Status", "status": "Failure", "metadata": {}},
            {"kind": "Status", "status": "Success", "metadata": {}},
            {"items": [], "metadata": {}},
            {"kind": "PodList", "items": 7, "metadata": {}},
            {},
        ],
    )
    async def test_a_response_that_is_no_list_does_not_count_as_empty(self, transport: Transport, page: object) -> None:
        async with HttpServer(web.Response(body=json.dumps(page).encode())) as server:
            error = await rejected(anext(server.client(transport).list(PODS)))
        assert error.code == "kube-answer"

    async def test_a_list_with_a_repeating_continue_token_ends(self, transport: Transport) -> None:
        page = {"kind": "PodList", "items": [], "metadata": {"continue": "again"}}
        async with HttpServer(web.Response(body=json.dumps(page).encode())) as server:
            error = await rejected(anext(server.client(transport).list(PODS)))
            assert len(server.requests) == 2
        assert error.code == "kube-answer"

    async def test_cookies_are_not_stored(self, transport: Transport) -> None:
        async with HttpServer(web.Response(body=b"{}", headers={"Set-Cookie": "a=b"})) as server:
            client = server.client(transport)
            await client.send(GET)
            await client.send(GET)
            assert "Cookie" not in server.requests[1].headers


class TestCompression:
    @pytest.mark.parametrize(
        ("remote", "method", "requested"), [(True, "GET", True), (True, "PUT", False), (False, "GET", False)]
    )
    async def test_gzip_is_requested_only_for_gets_from_remote_servers(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, *, remote: bool, method: str, requested: bool
    ) -> None:
        monkeypatch.setattr(rest, "is_loopback", lambda host: not remote)
        async with HttpServer(web.Response(body=b"{}")) as server:
            await server.client(transport).send(Request(method, "/api"))
            assert ("Accept-Encoding" in server.requests[0].headers) is requested


class TestLists:
    async def test_a_list_is_read_page_by_page(self, transport: Transport) -> None:
        pages = [
            {"kind": "PodList", "items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "x y"}},
            {"kind": "PodList", "items": None, "metadata": {"continue": "z"}},
            {"kind": "PodList", "items": [{"metadata": {"name": "b"}}], "metadata": {}},
        ]
        async with HttpServer(*(web.Response(body=json.dumps(page).encode()) for page in pages)) as server:
            found = [each async for each in server.client(transport).list(PODS, "n", labels="l=1", fields="f=2")]
            queries = [dict(request.query) for request in server.requests]
        assert [ref_of(each) for each in found] == [ObjectRef("", "Pod", "", "a"), ObjectRef("", "Pod", "", "b")]
        same = {"labelSelector": "l=1", "fieldSelector": "f=2"}
        assert [query.pop("limit") for query in queries] == ["100", "500", "500"]
        assert queries == [same, same | {"continue": "x y"}, same | {"continue": "z"}]

    @pytest.mark.parametrize("can_reduce", [True, False])
    async def test_a_list_of_metadata_has_the_real_kind_and_no_other_fields(
        self, transport: Transport, *, can_reduce: bool
    ) -> None:
        item = {"metadata": {"name": "a"}}
        reduced = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"} | item
        listed = reduced if can_reduce else item | {"spec": {"nodeName": "n"}}
        page = {"kind": "PodList", "items": [listed], "metadata": {}}
        async with HttpServer(web.Response(body=json.dumps(page).encode())) as server:
            found = [each async for each in server.client(transport).list(PODS, metadata_only=True)]
        assert found == [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}]


class TestStreams:
    def streaming(self, *chunks: bytes, dropped: bool = False) -> Callable[[web.Request], Any]:
        async def respond(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            if dropped:
                return await drop_connection(request)
            return response

        return respond

    async def test_lines_do_not_depend_on_chunk_boundaries(self, transport: Transport) -> None:
        ship = "🚢".encode()
        async with HttpServer(self.streaming(b"one\ntw", b"o\n", ship[:2], ship[2:] + b"\nlast")) as server:
            assert [line async for line in server.client(transport).stream_lines(GET)] == [
                b"one",
                b"two",
                ship,
                b"last",
            ]

    async def test_a_lost_connection_is_an_error_after_the_complete_lines(self, transport: Transport) -> None:
        async with HttpServer(self.streaming(b"one\nhalf", dropped=True)) as server:
            lines = server.client(transport).stream_lines(GET)
            assert await anext(lines) == b"one"
            error = await rejected(anext(lines))
        assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-connection-lost")

    async def test_a_line_above_the_limit_is_an_error(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retry, "LineSplitter", functools.partial(LineSplitter, max_bytes=1000))
        async with HttpServer(self.streaming(bytes(2000))) as server:
            error = await rejected(anext(server.client(transport).stream_lines(GET)))
        assert error.code == "kube-answer-size"

    async def test_an_error_response_to_a_stream_is_an_error(self, transport: Transport) -> None:
        async with HttpServer(web.Response(status=410, body=failure(410, "Expired"))) as server:
            error = await rejected(anext(server.client(transport).stream_lines(GET)))
        assert isinstance(error, ApiError)
        assert (error.status, error.reason) == (410, "Expired")

    async def test_closing_a_stream_early_closes_it_at_the_server(self, transport: Transport) -> None:
        ended = asyncio.Event()

        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                await response.write(b"one\n")
                await asyncio.Event().wait()
            finally:
                ended.set()
            return response

        async with HttpServer(endless) as server, asyncio.timeout(30):
            async with aclosing(server.client(transport).stream_lines(GET)) as lines:
                assert await anext(lines) == b"one"
            await ended.wait()

    async def test_a_timeout_while_reading_a_line_ends_the_stream(self, transport: Transport) -> None:
        async def silent(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"one\n")
            await asyncio.Event().wait()
            return response

        async with HttpServer(silent) as server, asyncio.timeout(30):
            lines = server.client(transport).stream_lines(GET)
            assert await anext(lines) == b"one"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(lines)
            with pytest.raises(StopAsyncIteration):
                await anext(lines)


class TestPaths:
    @pytest.mark.parametrize(
        ("resource", "parts", "path"),
        [
            (PODS, ("n", "a", "log"), "/api/v1/namespaces/n/pods/a/log"),
            (PODS, (), "/api/v1/pods"),
            (
                ApiResource("apps", "v1", "Deployment", "deployments", True),
                ("n",),
                "/apis/apps/v1/namespaces/n/deployments",
            ),
            (ApiResource("", "v1", "Node", "nodes", False), ("n", "a"), "/api/v1/nodes/a"),
            (ApiResource("g", "v1", "R", "rs", False), ("", "system:node"), "/apis/g/v1/rs/system:node"),
            (ApiResource("g", "v1", "R", "rs", False), ("", "a b?c#d"), "/apis/g/v1/rs/a%20b%3Fc%23d"),
        ],
    )
    def test_paths_of_objects_and_collections(self, resource: ApiResource, parts: tuple[str, ...], path: str) -> None:
        assert resource.path(*parts) == path

    @pytest.mark.parametrize("name", [".", "..", "../secrets/x", "a/b", "a%2fb"])
    def test_a_name_that_would_change_the_path_is_rejected(self, name: str) -> None:
        with pytest.raises(GovernorError, match="is not an object name"):
            PODS.path("n", name)
        with pytest.raises(GovernorError, match="is not an object name"):
            PODS.path(name, "a")

    @pytest.mark.parametrize("namespace", ["", "n"])
    async def test_an_object_of_a_namespaced_kind_needs_a_namespace(self, transport: Transport, namespace: str) -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        if namespace:
            pod["metadata"] = {"name": "a", "namespace": namespace}
        async with HttpServer(web.Response(body=json.dumps(pod).encode())) as server:
            client = server.client(transport)
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: client.get(PODS, "a", namespace),
                lambda: client.create(PODS, pod, manager="m"),
                lambda: client.replace(PODS, pod, manager="m"),
                lambda: client.apply(PODS, pod, manager="m"),
                lambda: client.patch(PODS, "a", namespace, {}, manager="m"),
                lambda: client.delete(PODS, "a", namespace),
            ]
            for call in calls:
                if namespace:
                    await call()
                else:
                    error = await rejected(call())
                    assert (error.kind, error.code) == (Kind.INVALID, "kube-namespace")
            assert len(server.requests) == (len(calls) if namespace else 0)


class TestProxies:
    async def test_a_proxy_receives_its_own_credential_but_not_the_clusters(self, transport: Transport) -> None:
        heads: list[bytes] = []

        async def reject(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(reject, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            proxy = Proxy(f"http://127.0.0.1:{port}", Secret("Basic bWU6aHVudGVyMg=="))
            access = Access("https://api.example:6443", token=Secret(TOKEN), proxy=proxy)
            error = await rejected(Client(transport, access, QUICK).send(GET))
        assert error.code == "kube-unreachable"
        assert "the proxy responded 407" in str(error)
        assert heads[0].startswith(b"CONNECT api.example:6443 HTTP/1.1\r\n")
        assert b"Proxy-Authorization: Basic bWU6aHVudGVyMg==\r\n" in heads[0]
        assert TOKEN.encode() not in heads[0]
        assert "bWU6" not in str(error)


def test_the_repr_of_requests_and_responses_omits_the_body() -> None:
    request = Request("PUT", "/api/v1/namespaces/n/secrets/a", body=b"hunter2")
    assert f"{request} {request!r} {[request]}".count("PUT /api/v1/namespaces/n/secrets/a") == 3
    assert "hunter2" not in f"{request!r} {Response(200, b'hunter2')!r}"
