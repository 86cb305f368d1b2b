"""Requests as the protocol allows them, though few clients send them, have dockerd's responses."""

import asyncio
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testbed.docker.engine import ANSWER_WITHIN_S
from tests.integration.runtimeproxy.docker_clients.bed import IDLE, DockerBed, ProxiedBed
from tests.integration.runtimeproxy.docker_clients.raw import chunked, container, raw_connection, request

CREATE = "POST /v1.41/containers/create"


async def test_bodies_in_chunks_and_after_100_continue_are_received(bed: DockerBed) -> None:
    body = container(bed.image, Labels={"large": "x" * 100_000})
    coding = "Transfer-Encoding: chunked"
    async with raw_connection(bed.socket) as connection:
        for size, fields in ((1000, [coding]), (7, [coding]), (60_000, ["Trailer: X-Sum", coding])):
            await connection.send(request(CREATE, b"", *fields), chunked(body, size))
            assert (await connection.response()).status == 201
        expectation = f"Content-Length: {len(body)}", "Expect: 100-continue"
        for framing, sent in ((expectation, body), ((coding, expectation[1]), chunked(body, 5000))):
            await connection.send(request(CREATE, b"", *framing))
            assert (await connection.head()).status == 100
            await connection.send(sent)
            assert (await connection.response()).status == 201
    assert len(await bed.engine("GET", "/containers/json", query={"all": "1"})) == 5


async def test_requests_on_one_connection_are_answered_in_order(bed: DockerBed) -> None:
    body = container(bed.image)
    requests = [
        request("HEAD /_ping"),
        request("GET /v1.41/containers/missing/json"),
        request(f"{CREATE}?name=one", body),
        request("POST /v1.41/containers/one/start"),
        request("POST /v1.41/containers/one/start"),
        request("GET /containers/one/json"),
        request("DELETE /v1.41/containers/one?force=1"),
        request("GET /v1.41/containers/json?all=1"),
    ]
    async with raw_connection(bed.socket) as connection:
        await connection.send(b"".join(requests))
        assert (await connection.head()).status == 200  # HEAD has the length of a body that it does not have
        found = [await connection.response() for _ in requests[1:]]
        assert [each.status for each in found] == [404, 201, 204, 304, 200, 204, 200]
        assert json.loads(found[-1].body) == []
        await connection.send(request("GET /_ping", b"", "Connection: close"))
        assert (await connection.response()).body == b"OK"
        assert await connection.is_closed()


async def test_a_client_that_sends_nothing_more_receives_its_response(bed: DockerBed) -> None:
    async with raw_connection(bed.socket) as connection:
        await connection.send(request(f"{CREATE}?name=closed", container(bed.image)))
        connection.writer.write_eof()
        assert (await connection.response()).status == 201
        assert await connection.is_closed()
    async with raw_connection(bed.socket) as connection:
        await connection.send(b"GET /containers/closed/json HTTP/1.0\r\n\r\n")
        assert (await connection.head()).status == 200
        async with asyncio.timeout(ANSWER_WITHIN_S):
            assert json.loads(await connection.reader.read(-1))["Name"] == "/closed"


async def test_an_upgraded_connection_is_half_closed(bed: DockerBed) -> None:
    await bed.run("--name=upgraded")
    for upgrade, status in ((["Connection: Upgrade", "Upgrade: tcp"], 101), ([], 200)):
        command = {"AttachStdin": True, "AttachStdout": True, "Cmd": ["cat"]}
        created = await bed.engine("POST", "/containers/upgraded/exec", command)
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        async with raw_connection(bed.socket) as connection:
            await connection.send(request(f"POST /v1.41/exec/{created['Id']}/start", body, *upgrade))
            assert (await connection.head()).status == status
            await connection.send(b"later\n")
            assert await connection.reader.readexactly(14) == b"\1\0\0\0\0\0\0\x06later\n"
            connection.writer.write_eof()
            assert await connection.is_closed()
        inspected = await bed.engine("GET", f"/exec/{created['Id']}/json")
        assert (inspected["Running"], inspected["ExitCode"]) == (False, 0)


async def test_a_rejected_upgrade_leaves_a_connection_with_requests(bed: DockerBed) -> None:
    upgrade = "Connection: Upgrade", "Upgrade: tcp"
    async with raw_connection(bed.socket) as connection:
        await connection.send(request("POST /v1.41/exec/missing/start", b"{}", *upgrade))
        assert (await connection.response()).status == 404
        await connection.send(request("GET /_ping"))
        assert (await connection.response()).body == b"OK"
        await connection.send(request("POST /v1.41/containers/missing/attach?stream=1", b"", *upgrade))
        assert (await connection.head()).status == 404
        async with asyncio.timeout(ANSWER_WITHIN_S):
            assert await connection.reader.read(-1) == b"No such container: missing\r\n"


async def test_a_websocket_is_attached(bed: DockerBed) -> None:
    container_id = await bed.cli("run", "--detach", "--interactive", bed.image, "-c", "exec cat")
    connector = aiohttp.UnixConnector(str(bed.socket))
    url = f"http://docker/v1.41/containers/{container_id}/attach/ws?stream=1&stdin=1&stdout=1"
    async with (
        asyncio.timeout(ANSWER_WITHIN_S),
        aiohttp.ClientSession(connector=connector) as session,
        session.ws_connect(url, origin="http://docker") as websocket,
    ):
        for number in range(3):
            await websocket.send_str(f"{number}\n")
            assert (await websocket.receive()).data in (f"{number}\n", f"{number}\n".encode())


async def test_containers_may_be_called_like_an_api_version(bed: DockerBed) -> None:
    for path in ("", "/v1.41", "/v1.24"):
        async with raw_connection(bed.socket) as connection:
            await connection.send(request(f"POST {path}/containers/create?name=v1.2", container(bed.image)))
            await connection.send(request(f"POST {path}/containers/v1.2/start"))
            await connection.send(request(f"POST {path}/containers/v1.2/update", b'{"CpuShares": 99}'))
            await connection.send(request(f"POST {path}/containers/v1.2/kill"))
            await connection.send(request(f"DELETE {path}/containers/v1.2?force=1"))
            assert [(await connection.response()).status for _ in range(5)] == [201, 204, 200, 204, 204]


async def test_unknown_fields_and_routes_pass(bed: DockerBed) -> None:
    unknown: dict[str, Any] = {"XNew": {"a": [1, None]}, "HostConfig": {"CpuShares": 77, "XOther": 2**60}}
    async with raw_connection(bed.socket) as connection:
        await connection.send(request(f"{CREATE}?name=unknown&new=1", container(bed.image, **unknown), "X-New: \xe9"))
        assert (await connection.response()).status == 201
        await connection.send(request("OPTIONS /v1.41/nothing"))
        assert (await connection.response()).status in (200, 404)
        await connection.send(request("GET /v1.99/version"))
        response = await connection.response()
        assert response.status == 400
        assert "client version 1.99 is too new" in response.message
    assert (await bed.engine("GET", "/containers/unknown/json"))["HostConfig"]["CpuShares"] == 77


async def test_a_slow_reader_delays_only_itself(bed: DockerBed) -> None:
    container_id = await bed.run(script="head -c 30000000 /dev/zero | tr '\\0' a | fold -w 1000; " + IDLE)
    async with raw_connection(bed.socket) as connection:
        await connection.send(request(f"GET /v1.41/containers/{container_id}/logs?stdout=1&follow=1"))
        assert (await connection.head()).status == 200
        assert await bed.cli("exec", container_id, "echo", "meanwhile") == "meanwhile"
        received = 0
        async with asyncio.timeout(ANSWER_WITHIN_S):
            while received < 30_000_000:
                part = await connection.reader.read(2**20)
                assert part != b""
                received += len(part)


async def test_a_head_that_is_sent_slowly_is_read(bed: DockerBed) -> None:
    async with raw_connection(bed.socket) as connection:
        for byte in request("GET /_ping"):
            await connection.send(bytes([byte]))
        assert (await connection.response()).body == b"OK"


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_responses_to_requests_in_any_pieces_are_dockerds_bytes(proxied: ProxiedBed, seed: int) -> None:
    rng = random.Random(seed)
    coding = "Transfer-Encoding: chunked"
    kinds = [
        request("GET /_ping"),
        request("HEAD /_ping"),
        request("GET /version", b"unread"),
        request("GET /v1.41/images/json", b"", coding) + chunked(b"x" * 3000, 999),
        request("POST /v1.41/containers/missing/start"),
        request("POST /containers/missing/update", b'{"CpuShares": 2}'),
        request(CREATE, b'{"Image": "local.test/missing:1"}'),
        request(CREATE, b"", coding) + chunked(b"not JSON", 3),
        request("DELETE /v1.41/containers/missing"),
        request("GET /v1.41/nothing?q=%20", b"", "X-Empty:", "x-MiXed: \t value \t"),
    ]
    sent = b"".join(rng.choices(kinds, k=40)) + request("GET /_ping", b"", "Connection: close")
    cuts = sorted(rng.sample(range(1, len(sent)), 60))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    direct = await _received(proxied.dockerd.socket, pieces)
    assert direct.count(b"HTTP/1.1 ") == 41
    assert await _received(proxied.socket, pieces) == direct


async def _received(socket: Path, pieces: Sequence[bytes]) -> bytes:
    """Send pieces, and return all that is received, without the time."""
    async with raw_connection(socket) as connection, asyncio.timeout(ANSWER_WITHIN_S):
        for piece in pieces:
            await connection.send(piece)
            await asyncio.sleep(0)
        return re.sub(rb"Date: [^\r]+", b"Date: now", await connection.reader.read(-1))
