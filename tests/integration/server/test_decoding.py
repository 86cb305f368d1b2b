"""Large request bodies are decoded off the event loop, and a bounded amount of them is held."""

import asyncio
import io
import threading
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from governor import yamltext
from governor.server import main
from governor.server.api import bodies, changes
from governor.server.changes import pipeline
from governor.wire.rest import PREFIX
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

WITHIN_S = 20
LARGE = profile("large", component("store", redisHost="x" * 200_000), selector={"matchLabels": {"a": "b"}})
YAML = ("application/yaml", yamltext.dump(runtime("r1")).encode())
JSON = ("application/json", msgspec.json.encode({"documents": [LARGE]}))


class HeldDecoder:
    """Replaces a decoding function; waits in its thread until it is released."""

    def __init__(self, decode: Any) -> None:
        self._decode = decode
        self.started = threading.Semaphore(0)
        self.released = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.started.release()
        assert self.released.wait(WITHIN_S)
        return self._decode(*arguments)

    async def reached(self) -> bool:
        """Wait until a request is being decoded; the event loop must be free for that."""
        return await asyncio.to_thread(self.started.acquire, timeout=WITHIN_S)


async def post(session: aiohttp.ClientSession, bed: ServerBed, media_type: str, data: bytes) -> tuple[int, Any, Any]:
    headers = {"Content-Type": media_type}
    async with session.post(f"{bed.url}{PREFIX}/changes", data=io.BytesIO(data), headers=headers) as response:
        return response.status, response.headers, await response.json(content_type=None)


@pytest.mark.parametrize(
    ("module", "function", "request_body"),
    [(changes, "load", YAML), (bodies, "_decode", JSON), (pipeline, "check", YAML), (pipeline, "check", JSON)],
    ids=["yaml", "json", "checked yaml", "checked json"],
)
async def test_requests_are_served_while_a_body_is_processed_and_excess_bodies_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, request_body: tuple[str, bytes]
) -> None:
    held = HeldDecoder(getattr(module, function))
    monkeypatch.setattr(module, function, held)
    monkeypatch.setattr(main, "MAX_HELD_BODY_BYTES", len(request_body[1]))
    async with running(tmp_path) as bed:
        headers = {"Authorization": f"Bearer {bed.admin_token.reveal()}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            first = asyncio.create_task(post(session, bed, *request_body))
            assert await held.reached()
            async with bed.client() as admin:
                assert await admin.runtimes() == ()
            status, response_headers, problem = await post(session, bed, *request_body)
            held.released.set()
            assert (await first)[0] == 200
            assert (await post(session, bed, *request_body))[0] == 200
    assert (status, response_headers["Retry-After"]) == (503, "1")
    assert problem["type"] == "busy"


async def test_bodies_that_are_still_arriving_count_and_are_freed_when_their_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "MAX_HELD_BODY_BYTES", len(JSON[1]) + 1000)
    async with running(tmp_path) as bed:
        authorization = f"Bearer {bed.admin_token.reveal()}"
        _, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
        head = f"POST {PREFIX}/changes HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\nContent-Length: 999999"
        writer.write(f"{head}\r\n\r\n".encode() + bytes(200_000))
        async with aiohttp.ClientSession(headers={"Authorization": authorization}) as session:

            async def is_full() -> bool:
                return bed.services.held_bodies.used_bytes == 200_000

            assert await until(is_full)
            rejected, headers, problem = await post(session, bed, *JSON)
            # Small bodies, such as reports, are admitted.
            small, _, _ = await post(session, bed, "application/json", b'{"documents":[]}')
            writer.close()

            async def is_free() -> bool:
                return bed.services.held_bodies.used_bytes == 0

            assert await until(is_free)
            assert (await post(session, bed, *JSON))[0] == 200
    assert (rejected, headers["Retry-After"], problem["type"]) == (503, "1", "busy")
    assert small != 503


async def test_a_duplicate_key_among_very_many_is_found_at_once(tmp_path: Path) -> None:
    keys = ",".join(f'"k{number}":0' for number in range(300_000))
    async with running(tmp_path) as bed, aiohttp.ClientSession() as session:
        session.headers["Authorization"] = f"Bearer {bed.admin_token.reveal()}"
        body = f'{{"documents":[{{{keys},"k299999":0}}]}}'.encode()
        status, _, problem = await post(session, bed, "application/json", body)
    assert (status, problem["type"]) == (400, "json-duplicate-key")
