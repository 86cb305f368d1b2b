"""HTTP/1.1 exchanges: reuse and loss of connections, interim responses, and bytes that are not HTTP."""

import asyncio
import socket

import msgspec
import pytest

from governor.errors import Kind
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config.access import Access
from tests.unit.kube.http_bed import QUICK, failure, rejected

GET = Request("GET", "/api")
PATCH = Request("PATCH", "/api", body=b"{}")
POST = Request("POST", "/api", body=b"{}", retryable=False)
ONE_ATTEMPT = msgspec.structs.replace(QUICK, attempts=1)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class ByteServer:
    """Sends the given bytes in response to each request, and closes the connection if they are empty or say so."""

    def __init__(self, *responses: bytes) -> None:
        self._responses = list(responses)
        self.requests: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """Number of connections that were accepted."""
        return len(self.writers)

    def client(self, transport: Transport, limits: Limits = ONE_ATTEMPT) -> Client:
        """Return a client, by default one that does not retry."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return Client(transport, Access(f"http://127.0.0.1:{port}"), limits)

    async def __aenter__(self) -> "ByteServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while head := await _read_head(reader):
            self.requests.append(head)
            response = self._responses.pop(0)
            writer.write(response)
            if not response or b"Connection: close" in response:
                break
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    if b"Content-Length: 2" in head:
        await reader.readexactly(2)
    return head


class TestReuse:
    async def test_requests_one_after_another_use_one_connection(self, transport: Transport) -> None:
        async with ByteServer(OK, OK, OK) as server:
            client = server.client(transport)
            for request in (GET, PATCH, POST):
                assert await client.send(request) == b"{}"
            assert server.connections == 1

    @pytest.mark.parametrize("status", [404, 409, 503])
    async def test_an_error_response_keeps_the_connection(self, transport: Transport, status: int) -> None:
        body = failure(status)
        error = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
        async with ByteServer(error, OK) as server:
            client = server.client(transport)
            await rejected(client, GET)
            assert await client.send(GET) == b"{}"
            assert server.connections == 1

    @pytest.mark.parametrize(
        "closing",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        ],
    )
    async def test_a_connection_that_the_server_closes_is_not_used_again(
        self, transport: Transport, closing: bytes
    ) -> None:
        async with ByteServer(closing, OK) as server:
            client = server.client(transport)
            assert [await client.send(GET), await client.send(GET)] == [b"{}", b"{}"]
            assert server.connections == 2

    @pytest.mark.parametrize("is_kept", [True, False])
    async def test_an_idle_connection_is_kept_for_as_long_as_the_client_asks(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
    ) -> None:
        now_s = 0.0
        monkeypatch.setattr("aiohttp.connector.monotonic", lambda: now_s)
        limits = msgspec.structs.replace(QUICK, keepalive_s=10.0 if is_kept else 2.0)
        async with ByteServer(OK, OK, OK, OK) as server:
            client = server.client(transport, limits)
            for _ in range(4):
                await client.send(GET)
                now_s += 2.5
            assert server.connections == (1 if is_kept else 4)

    async def test_a_response_that_no_request_asked_for_is_not_that_of_the_next(self, transport: Transport) -> None:
        """A load balancer announces with a 408 that it gives up an idle connection."""
        async with ByteServer(OK, OK, OK) as server, Transport() as other:
            client = server.client(transport)
            await client.send(GET)
            server.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            await server.client(other).send(GET)  # the event loop reads the 408 before this response
            assert await client.send(POST) == b"{}"
            assert (server.connections, len(server.requests)) == (3, 3)


class TestLoss:
    async def test_a_retryable_request_is_sent_again_on_a_new_connection(self, transport: Transport) -> None:
        async with ByteServer(OK, b"", OK) as server:
            client = server.client(transport)
            await client.send(GET)
            assert await client.send(PATCH) == b"{}"
            assert (server.connections, len(server.requests)) == (2, 3)

    async def test_it_is_sent_again_only_once(self, transport: Transport) -> None:
        async with ByteServer(b"", b"", OK) as server:
            error = await rejected(server.client(transport), PATCH)
            assert (error.code, len(server.requests)) == ("kube-connection-lost", 2)

    async def test_a_request_that_may_have_been_executed_is_not_sent_again(self, transport: Transport) -> None:
        async with ByteServer(OK, b"", OK) as server:
            client = server.client(transport)
            await client.send(GET)
            assert (await rejected(client, POST)).code == "kube-connection-lost"
            assert len(server.requests) == 2

    async def test_a_failed_handshake_is_not_repeated(self, transport: Transport) -> None:
        connections = 0

        async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            writer.close()

        async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
            access = Access(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            error = await rejected(Client(transport, access, ONE_ATTEMPT), GET)
        assert (error.code, connections) == ("kube-unreachable", 1)

    async def test_a_truncated_body_is_a_lost_connection(self, transport: Transport) -> None:
        truncated = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{}"
        async with ByteServer(truncated) as server:
            assert (await rejected(server.client(transport), POST)).code == "kube-connection-lost"

    async def test_a_request_that_has_timed_out_is_not_sent_any_further(self, transport: Transport) -> None:
        """A server that reads again must not execute it."""
        large = Request("PUT", "/api", body=b"x" * 32_000_000, timeout_s=0.1)
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = Client(transport, Access(f"http://127.0.0.1:{server.getsockname()[1]}"), ONE_ATTEMPT)
            assert (await rejected(client, large)).kind is Kind.DEADLINE
            reader, writer = await asyncio.open_connection(sock=server.accept()[0])
            assert len(await reader.read()) < len(large.body)
            writer.close()


class TestResponses:
    async def test_interim_responses_are_skipped(self, transport: Transport) -> None:
        interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        async with ByteServer(interim + OK) as server:
            assert await server.client(transport).send(GET) == b"{}"

    @pytest.mark.parametrize(
        "body",
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}",
        ],
    )
    async def test_bodies_without_a_length_are_read_to_their_end(self, transport: Transport, body: bytes) -> None:
        async with ByteServer(body) as server:
            assert await server.client(transport).send(GET) == b"{}"

    @pytest.mark.parametrize(
        "response",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ],
    )
    async def test_bytes_that_are_not_http_are_an_error(self, transport: Transport, response: bytes) -> None:
        async with ByteServer(response, response) as server, asyncio.timeout(30):
            error = await rejected(server.client(transport), POST)
        assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-connection-lost")


class TestRequests:
    @pytest.mark.parametrize("path", ["", "api", "/a b", "/a\r\nX: y", "/ä", "/a\x00"])
    async def test_a_path_that_would_change_the_head_is_not_sent(self, transport: Transport, path: str) -> None:
        async with ByteServer() as server:
            error = await rejected(server.client(transport), Request("GET", path))
            assert (error.kind, error.code, server.requests) == (Kind.INVALID, "kube-path", [])

    async def test_the_head_names_host_and_length(self, transport: Transport) -> None:
        async with ByteServer(OK) as server:
            await server.client(transport).send(PATCH)
            lines = server.requests[0].decode().split("\r\n")
        assert lines[0] == "PATCH /api HTTP/1.1"
        assert [line for line in lines if line.startswith("Host: 127.0.0.1:")]
        assert "Content-Length: 2" in lines
