"""The server as a process: health, metrics, limits on connections, graceful shutdown."""

import asyncio
import logging
import signal
from contextlib import aclosing, suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest

from demo.programs import GovernorServer
from governor.client import Client
from governor.errors import GovernorError
from governor.server import uvicorn_server
from governor.server.services import DEFAULT_TIMING
from governor.wire.problems import Problem
from governor.wire.rest import PREFIX, ChangeRequest
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.server.bed import component, profile, running, runtime

SLOW_CLIENTS = 200
UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
"""What curl with ``--http2`` sends on plain HTTP."""


async def test_health_and_metrics_are_served_apart_from_the_api_until_sigterm_closes_streams(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = await start_server(GovernorServer(tmp_path))
    health = f"http://127.0.0.1:{server.ports['health']}"
    async with server.client() as admin:
        await admin.change(ChangeRequest(documents=(runtime("r1"), profile("p", component("s", redisHost="a")))))
        async with aiohttp.ClientSession() as session:

            async def issued() -> list[str]:
                async with session.get(f"{health}/metrics") as metrics:
                    samples = (await metrics.text()).splitlines()
                return samples if "governor_server_deliveries_total 1.0" in samples else []

            async with session.get(f"{health}/readyz") as ready:
                samples = await until(issued)
            async with session.get(f"{server.url}/metrics") as on_api:
                assert on_api.status == 404
        assert ready.status == 200
        assert 'governor_server_changes_total{outcome="accepted"} 1.0' in samples
        assert 'governor_server_requests_total{method="POST",route="/api/v1alpha1/changes",status="200"} 1.0' in samples
        assert "governor_server_open_watches 0.0" in samples
        assert not [line for line in samples if "r1" in line]

        async with aclosing(admin.progress(1)) as progress:
            await anext(progress)
            process = server._process
            assert process is not None
            process.send_signal(signal.SIGTERM)
            with pytest.raises(GovernorError, match="closed the stream"):
                await anext(progress)
    async with asyncio.timeout(10):
        assert await process.wait() == 0


async def test_a_slow_body_times_out(tmp_path: Path) -> None:
    async with running(tmp_path, timing=DEFAULT_TIMING._replace(body_s=0.1)) as bed:
        reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
        head = (
            f"POST {PREFIX}/changes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            f"Authorization: Bearer {bed.admin_token.reveal()}\r\n\r\n{{"
        )
        writer.write(head.encode())
        async with asyncio.timeout(10):
            answer = await reader.readuntil(b"}")
        writer.close()
        await writer.wait_closed()
    assert b" 504 " in answer.splitlines()[0]
    assert b'"type":"body-slow"' in answer


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:"])
async def test_a_slow_request_head_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(uvicorn_server, "HEAD_TIMEOUT_S", 0.1)
    async with running(tmp_path) as bed:
        reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
        writer.write(sent)
        async with asyncio.timeout(10):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()


CHUNKED = f"POST {PREFIX}/enrol HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nX-Long: ", b"x" * 4096, id="head"),
        pytest.param(CHUNKED + b"2\r\n{}\r\n0\r\n", b"X-Trailer: x\r\n" * 400, id="trailers"),
        pytest.param(CHUNKED + b"2\r\n{}\r\n0\r\nX-Long: ", b"x" * 4096, id="trailer"),
        pytest.param(CHUNKED + b"2;", b"x" * 4096, id="chunk extension"),
        pytest.param(
            f"GET {PREFIX}/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".encode(), b"\r\n" * 2048, id="empty lines"
        ),
    ],
)
async def test_what_a_client_sends_besides_a_body_is_bounded(tmp_path: Path, begin: bytes, part: bytes) -> None:
    async with running(tmp_path) as bed:
        reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
        writer.write(begin)
        sent = 0
        with suppress(ConnectionError):
            async with asyncio.timeout(10):
                while sent < 64 * uvicorn_server.MAX_HEAD_BYTES:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                    sent += len(part)
        writer.close()
    assert reader.exception() is not None
    assert uvicorn_server.MAX_HEAD_BYTES < sent < 64 * uvicorn_server.MAX_HEAD_BYTES


async def test_empty_lines_do_not_keep_an_idle_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "HEAD_TIMEOUT_S", 0.2)
    async with running(tmp_path) as bed:
        reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
        writer.write(f"GET {PREFIX}/status HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(10):
            await reader.readuntil(b"}")
            trickle = asyncio.create_task(_trickle(writer, b"\r\n"))
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        trickle.cancel()
        await asyncio.wait({trickle})
        writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param("", id="no host"),
        pytest.param("Host: x\r\nHost: y\r\n", id="two hosts"),
        pytest.param("Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", id="unknown transfer coding"),
        pytest.param("Host: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n", id="two lengths"),
        pytest.param(f"Host: x\r\n{UPGRADE}Content-Length: 2\r\n", id="body with an upgrade"),
    ],
)
async def test_a_request_that_is_read_differently_by_others_is_rejected(tmp_path: Path, headers: str) -> None:
    async with running(tmp_path) as bed:
        reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
        writer.write(f"GET {PREFIX}/openapi.json HTTP/1.1\r\n{headers}\r\n".encode())
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    found = msgspec.json.decode(body, type=Problem)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    assert (found.status, found.type) == (400, "http-invalid")


async def test_an_offer_to_upgrade_the_protocol_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as bed:
        reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
        request = f"GET {PREFIX}/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bed.admin_token.reveal()}\r\n"
        for headers in (UPGRADE, ""):
            writer.write(f"{request}{headers}\r\n".encode())
            async with asyncio.timeout(10):
                answer = await reader.readuntil(b"}}")
            assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


async def test_a_keep_alive_connection_serves_several_large_requests(tmp_path: Path) -> None:
    large = component("s", redisHost="x" * 200_000)
    async with running(tmp_path) as bed, bed.client() as admin:
        for name in ("a", "b"):
            change = await admin.change(
                ChangeRequest(documents=(profile(name, large, selector={"matchLabels": {"a": name}}),))
            )
            assert change.revision is not None
        async with Client(bed.url, None) as anonymous:
            with pytest.raises(GovernorError):
                await anonymous.change(ChangeRequest(documents=(profile("c", large),)))


@pytest.mark.parametrize("is_authenticated", [True, False])
async def test_slow_request_bodies_are_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_authenticated: bool
) -> None:
    monkeypatch.setattr(uvicorn_server, "LINGER_S", 0.2)
    async with running(tmp_path, timing=DEFAULT_TIMING._replace(body_s=0.2)) as bed:
        credential = bed.admin_token.reveal() if is_authenticated else "none"
        head = (
            f"POST {PREFIX}/changes HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
            f"Authorization: Bearer {credential}\r\n\r\n{{"
        )

        async def send_slowly() -> bytes:
            reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
            writer.write(head.encode())
            answer = await reader.readuntil(b"}")
            trickle = asyncio.create_task(_trickle(writer))
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            trickle.cancel()
            await asyncio.wait({trickle})
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            return answer

        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(send_slowly() for _ in range(SLOW_CLIENTS)))
    status = b"504" if is_authenticated else b"401"
    assert [answer.split()[1] for answer in answers] == [status] * SLOW_CLIENTS


async def _trickle(writer: asyncio.StreamWriter, part: bytes = b" ") -> None:
    """Send a few bytes now and then, which restart uvicorn's keep-alive timeout each time."""
    with suppress(ConnectionError):
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)
