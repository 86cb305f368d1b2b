"""Checks on a real server: shown with the runtime, and only a runtime's own agent may send them.

They are answered without a task and without the store once the token is known, with the same responses as otherwise.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from starlette.types import Receive, Scope, Send

from governor.client import Client, WatchSession
from governor.domain.bundles import refs
from governor.domain.reports import Check, Report, ResourceReport, State
from governor.errors import GovernorError, Kind
from governor.server.api import application
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.deliveries import open_delivery
from governor.wire.rest import PREFIX
from tests.integration.server.bed import Agent, ServerBed, component, profile, running, runtime


async def verified_report(agent: Agent, client: Client) -> Report:
    """Open a watch, as a server demands before a report, and return a report on its delivery."""
    sessions: list[WatchSession] = []
    async with aclosing(client.watch("r1", on_open=sessions.append)) as watch:
        delivery = open_delivery(await anext(watch), agent.delivery_key)
    found = tuple(ResourceReport(state=State.VERIFIED, resource=ref) for ref in refs(delivery.resources))
    session, now = sessions[0].number, datetime.now(UTC)
    return Report("r1", delivery.sequence, delivery.attempt, delivery.digest, session, 1, now, "test", found, ())


async def test_a_check_is_shown_until_a_newer_report_replaces_what_was_checked(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), profile("orders", component("one", redisHost="a:1")))
        agent, other = await bed.enrol("r1"), await bed.enrol("r2")
        async with agent.client() as client, other.client() as foreign:
            report = await verified_report(agent, client)
            await client.report(report)
            before = (await client.runtime("r1")).conditions[0]
            await client.check("r1", report.check)
            checked = (await client.runtime("r1")).conditions[0]
            with pytest.raises(GovernorError) as caught:
                await foreign.check("r1", report.check)
            await client.report(msgspec.structs.replace(report, n=2))
            after = (await client.runtime("r1")).conditions[0]

    assert (before.reason, before.checked, after.checked) == ("Verified", None, None)
    assert checked.checked is not None
    assert msgspec.structs.replace(checked, checked=None) == before
    assert caught.value.kind is Kind.DENIED


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the requests for which the application is called."""
    paths: list[str] = []
    respond = application._Resource.respond

    async def record(resource: application._Resource, scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        await respond(resource, scope, receive, send)

    monkeypatch.setattr(application._Resource, "respond", record)
    return paths


async def exchange(bed: ServerBed, parts: Sequence[bytes], responses: int) -> list[int]:
    """Send some bytes on one connection, each part in a segment of its own; return the statuses of the responses."""
    reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
    statuses = []
    async with asyncio.timeout(10):
        for part in parts:
            writer.write(part)
            await writer.drain()
            if len(parts) > 1:
                # When another request has its response, the server has read the part.
                async with bed.client() as viewer:
                    await viewer.runtimes()
        for _ in range(responses):
            head = await reader.readuntil(b"\r\n\r\n")
            statuses.append(int(head.split(b" ", 2)[1]))
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
    writer.close()
    return statuses


def post(token: Secret, body: bytes, runtime: str = "r1", headers: str = "") -> bytes:
    """Return the request of a check."""
    head = f"POST {PREFIX}/runtimes/{runtime}/checks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token.reveal()}\r\n"
    return f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_checks_are_answered_without_a_task_once_the_token_is_known(tmp_path: Path, called: list[str]) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), profile("orders", component("one", redisHost="a:1")))
        agent = await bed.enrol("r1")
        await agent.open_session()
        # Tokens of the same second are equal, and that of the session is known.
        token = credentials.mint("r1", agent.key, datetime.now(UTC) - timedelta(seconds=30))
        check = msgspec.json.encode(Check(1, 1, agent.session, 1))
        called.clear()
        first = await exchange(bed, [post(token, check)], 1)
        assert len(called) == 1
        again = await exchange(bed, [post(token, check) * 3], 3)
        assert len(called) == 1
        assert bed.services.hub.presence("r1").checked is not None
        # Everything else is answered as by the application, in the order of the requests.
        status = f"GET {PREFIX}/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token.reveal()}\r\n\r\n".encode()
        mixed = await exchange(bed, [post(token, check) + status + post(token, check)], 3)
        closing = await exchange(bed, [post(token, check, headers="Connection: close\r\n")], 1)
        wrong = await exchange(bed, [b"".join(wrong_requests(token, check))], 5)
        served = {
            labels["status"]: count
            for _, labels, count in bed.services.metrics.requests.samples()
            if labels["route"].endswith("/checks")
        }
    assert (first, again, mixed, closing) == ([204], [204] * 3, [204, 403, 204], [204])
    assert wrong == [403, 400, 400, 400, 401]
    assert served == {"204": 7.0, "403": 1.0, "400": 3.0, "401": 1.0}


def wrong_requests(token: Secret, check: bytes) -> list[bytes]:
    """Return requests for another runtime, with bodies that are no check, of another type, and with a wrong token."""
    return [
        post(token, check, runtime="r2"),
        post(token, b'{"sequence": "one"}'),
        post(token, check[:-1] + b',"n":1}'),
        post(token, check, headers="Content-Type: text/plain\r\n"),
        post(Secret(f"{token.reveal()}x"), check),
    ]


async def test_a_check_that_arrives_in_parts_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", component("one", redisHost="a:1")))
        agent = await bed.enrol("r1")
        await agent.open_session()
        check = msgspec.json.encode(Check(1, 1, agent.session, 1))
        request = post(agent.credential(), check)
        body = len(request) - len(check)
        for cut in (20, body - 2, body, body + 5):
            assert await exchange(bed, [request[:cut], request[cut:]], 1) == [204]


async def test_a_trailer_is_not_a_header(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", component("one", redisHost="a:1")))
        agent = await bed.enrol("r1")
        await agent.open_session()
        check, token = msgspec.json.encode(Check(1, 1, agent.session, 1)), agent.credential()
        known = await exchange(bed, [post(token, check)], 1)
        head = f"POST {PREFIX}/runtimes/r1/checks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        end = f"0\r\nAuthorization: Bearer {token.reveal()}\r\n\r\n"
        found = await exchange(bed, [f"{head}{len(check):x}\r\n".encode() + check + f"\r\n{end}".encode()], 1)
    assert (known, found) == ([204], [401])


async def test_a_known_token_is_rejected_by_a_check_as_soon_as_it_is_revoked(tmp_path: Path) -> None:
    async with running(tmp_path) as bed, bed.client() as admin:
        await bed.apply(runtime("r1"), profile("orders", component("one", redisHost="a:1")))
        agent = await bed.enrol("r1")
        await agent.open_session()
        request = post(agent.credential(), msgspec.json.encode(Check(1, 1, agent.session, 1)))
        before = await exchange(bed, [request * 2], 2)
        await admin.revoke_runtime("r1")
        after = await exchange(bed, [request], 1)
    assert (before, after) == ([204, 204], [401])
