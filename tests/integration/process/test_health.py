"""The health server on real sockets: responses, limits and malformed requests."""

import asyncio
import functools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governor.process.address import Address, listen
from governor.process.supervise import Lifecycle, Phase
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.instruments import Gauge, Registry
from governor.process.telemetry.metrics import program_registry

TIMEOUT_S = 10.0


class Served:
    """A running server and its checks."""

    def __init__(self, server: HealthServer, checks: Checks) -> None:
        self.checks = checks
        self.address = server.address

    async def exchange(self, data: bytes, *, half_close: bool = True) -> bytes:
        """Send raw bytes on a new connection and read until the server closes it."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        try:
            writer.write(data)
            if half_close:
                writer.write_eof()
            async with asyncio.timeout(TIMEOUT_S):
                return await reader.read()
        finally:
            writer.close()

    async def get(self, path: str, method: str = "GET") -> tuple[int, str, bytes]:
        """Return status, lower-cased head and body of the response."""
        response = await self.exchange(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = response.partition(b"\r\n\r\n")
        return int(head.split()[1]), head.decode().lower(), body


@asynccontextmanager
async def serving(
    registry: Registry | None = None, *, exchange_timeout_s: float = TIMEOUT_S, max_connections: int = 64
) -> AsyncIterator[Served]:
    checks = Checks()
    server = HealthServer(
        listen(Address("127.0.0.1", 0)),
        checks,
        registry or program_registry("test", "1"),
        exchange_timeout_s=exchange_timeout_s,
        max_connections=max_connections,
    )
    task = asyncio.create_task(server.run())
    try:
        yield Served(server, checks)
        assert not task.done(), "the server stopped"
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_program_without_failing_checks_is_alive_and_ready() -> None:
    async with serving() as served:
        served.checks.alive("loop", lambda: "")
        for path in ("/healthz", "/readyz", "/readyz?verbose"):
            status, head, body = await served.get(path)
            assert (status, json.loads(body)) == (200, {"ok": True, "failing": {}})
            assert "content-type: application/json" in head


async def test_a_failing_readiness_check_is_named_and_does_not_affect_liveness() -> None:
    reasons = {"store": "migrating", "watch": "not connected since 12:00", "files": ""}
    async with serving() as served:
        for name in reasons:
            served.checks.ready(name, functools.partial(reasons.__getitem__, name))
        status, _, body = await served.get("/readyz")
        assert (status, json.loads(body)["failing"]) == (503, {k: v for k, v in reasons.items() if v})
        assert (await served.get("/healthz"))[0] == 200
        reasons.update(store="", watch="")
        assert (await served.get("/readyz"))[0] == 200


async def test_a_program_that_is_not_alive_is_not_ready() -> None:
    async with serving() as served:
        served.checks.alive("writer", lambda: "the thread has ended")
        assert (await served.get("/healthz"))[0] == 503
        assert json.loads((await served.get("/readyz"))[2])["failing"] == {"writer": "the thread has ended"}


async def test_a_check_that_raises_fails_by_name_and_shows_no_message() -> None:
    def broken() -> str:
        raise RuntimeError("password=hunter2")

    async with serving() as served:
        served.checks.ready("broken", broken)
        status, _, body = await served.get("/readyz")
        assert status == 503
        assert json.loads(body)["failing"] == {"broken": "the check itself failed: RuntimeError"}


async def test_a_program_is_ready_only_between_start_and_stop() -> None:
    lifecycle = Lifecycle()
    seen = []
    async with serving() as served:
        served.checks.ready("program", lifecycle.not_ready)
        for phase in Phase:
            lifecycle.phase = phase
            seen.append((phase, (await served.get("/readyz"))[0]))
    assert seen == [(Phase.STARTING, 503), (Phase.RUNNING, 200), (Phase.STOPPING, 503)]


async def test_metrics_are_those_of_the_given_registry() -> None:
    async with serving(program_registry("test", "1.2.3")) as served:
        status, head, body = await served.get("/metrics")
    assert status == 200
    assert "content-type: text/plain" in head
    assert b'governor_build_info{program="test"' in body
    assert b'version="1.2.3"' in body


async def test_a_broken_collector_is_an_error_of_that_request_only() -> None:
    def broken() -> float:
        raise RuntimeError("cannot count")

    registry = Registry()
    Gauge("broken", "Cannot be counted.", registry=registry).set_function(broken)
    async with serving(registry) as served:
        assert (await served.get("/metrics"))[0] == 500
        assert (await served.get("/healthz"))[0] == 200


async def test_head_has_the_headers_of_get_without_the_body() -> None:
    async with serving() as served:
        _, get_head, get_body = await served.get("/healthz")
        status, head, body = await served.get("/healthz", "HEAD")
    assert (status, body) == (200, b"")
    assert f"content-length: {len(get_body)}" in get_head
    assert head == get_head


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/healthz/x", 404), ("POST", "/healthz", 405), ("DELETE", "/nothing", 405)],
)
async def test_other_paths_and_methods_are_rejected(method: str, path: str, status: int) -> None:
    async with serving() as served:
        received, head, _ = await served.get(path, method)
    assert received == status
    assert ("allow: get, head" in head) is (status == 405)


async def test_a_connection_carries_pipelined_requests() -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving() as served:
        assert (await served.exchange(request * 3)).count(b"HTTP/1.1 200") == 3


async def test_a_request_body_is_not_read_and_closes_the_connection() -> None:
    async with serving() as served:
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        response = await served.exchange(head + b"x" * 100, half_close=False)
    assert response.count(b"HTTP/1.1") == 1
    assert response.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\n\n" * 2, b"HTTP/1.1 400"),
        (b"GET / HTTP/two\r\nHost: x\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 400"),
        (b"GET /healthz HTTP/1.1\r\nHost", b"HTTP/1.1 400"),
        (b"", b""),
    ],
    ids=["tls hello", "version", "no host", "length", "cut off", "nothing"],
)
async def test_malformed_requests_are_rejected_and_the_server_continues(data: bytes, start: bytes) -> None:
    async with serving() as served:
        response = await served.exchange(data)
        assert response[: len(b"HTTP/1.1 400")] == start
        assert (await served.get("/healthz"))[0] == 200


@pytest.mark.parametrize(
    "start", [b"GET /" + b"a" * 17_000, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 3_000]
)
async def test_a_request_that_is_too_large_is_rejected_before_its_end(start: bytes) -> None:
    async with serving() as served:
        assert (await served.exchange(start, half_close=False)).startswith(b"HTTP/1.1 431")
        assert (await served.get("/healthz"))[0] == 200


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), prefix=st.sampled_from([b"", b"GET ", b"GET /healthz HTTP/1.1\r\n"]))
def test_no_input_stops_the_server(data: bytes, prefix: bytes) -> None:
    async def scenario() -> None:
        async with serving() as served:
            await served.exchange(prefix + data)
            assert (await served.get("/healthz"))[0] == 200

    asyncio.run(scenario())


async def test_the_connection_of_a_slow_client_is_closed_and_frees_its_slot() -> None:
    async with serving(exchange_timeout_s=0.2, max_connections=1) as served:
        reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        async with asyncio.timeout(TIMEOUT_S):
            assert await reader.read() == b""
            assert (await served.get("/healthz"))[0] == 200
        writer.close()


async def test_clients_beyond_the_limit_wait_for_a_free_slot() -> None:
    async with serving(max_connections=2) as served, asyncio.timeout(TIMEOUT_S):
        idle = [await asyncio.open_connection(served.address.host, served.address.port) for _ in range(2)]
        waiting = asyncio.create_task(served.get("/healthz"))
        for reader, writer in idle:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b'"failing":{}}\n')).startswith(b"HTTP/1.1 200")
        assert not waiting.done()
        for _, writer in idle:
            writer.close()
        assert (await waiting)[0] == 200


async def test_stopping_closes_the_socket_and_every_connection() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(TIMEOUT_S):
        assert b"HTTP" not in await reader.read()
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((served.address.host, served.address.port))


async def test_a_connection_reset_does_not_affect_other_clients() -> None:
    async with serving() as served:
        for _ in range(5):
            client = socket.create_connection((served.address.host, served.address.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
            client.close()
        assert (await served.get("/healthz"))[0] == 200
