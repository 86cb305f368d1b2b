"""The client against a small server that follows the wire format, and one that does not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import pytest
from aiohttp import web

from governor.client import Client, api, transport
from governor.domain.bundles import DeliveryPosition
from governor.domain.changes import Change, ChangeState
from governor.domain.documents import DocumentRef
from governor.domain.reports import Report
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.values.secret import Secret
from governor.wire import events
from governor.wire.deliveries import SignedDelivery
from governor.wire.problems import HTTP_STATUS, problem
from governor.wire.rest import PREFIX, ChangeRequest, DeliveryNotice, DocumentView, RevisionProgress

TOKEN = "rg-very-secret"
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a server with the given routes (``"GET /path"`` below the API's prefix) and return its address."""
    runners: list[web.AppRunner] = []

    async def start(routes: dict[str, Handler]) -> str:
        application = web.Application()
        for route, handler in routes.items():
            method, path = route.split()
            application.router.add_route(method, PREFIX + path, handler)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.01)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def client(server: str, timeout_s: float = 30) -> Client:
    return Client(server, lambda: Secret(TOKEN), timeout_s=timeout_s)


def responding(body: object, status: int = 200, content_type: str = "application/json") -> Handler:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(body), status=status, content_type=content_type)

    return handler


def rejecting(error: GovernorError) -> Handler:
    return responding(problem(error), HTTP_STATUS[error.kind], "application/problem+json")


def streaming(*chunks: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then is not None:
            await then(request)
        return response

    return handler


async def abort(request: web.Request) -> None:
    """Abort the connection in the middle of the response."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.Event().wait()


async def stay_idle(_request: web.Request) -> None:
    await asyncio.Event().wait()


def delivery_event(sequence: int) -> bytes:
    signed = SignedDelivery(f'{{"sequence":{sequence}}}', "key", "signature")
    return events.encode(events.Event("delivery", msgspec.json.encode(signed).decode(), str(sequence)))


def notice_event(sequence: int) -> bytes:
    notice = msgspec.json.encode(DeliveryNotice(sequence)).decode()
    return events.encode(events.Event("notice", notice, str(sequence)))


def progress_event(progress: RevisionProgress) -> bytes:
    return events.encode(events.Event("progress", msgspec.json.encode(progress).decode()))


async def watched(connection: Client, count: int, held: DeliveryPosition | None = None) -> list[SignedDelivery]:
    """Return the first ``count`` deliveries of a watch, then close it."""
    found: list[SignedDelivery] = []
    async with aclosing(connection.watch("r1", held or DeliveryPosition())) as deliveries:
        async for delivery in deliveries:
            found.append(delivery)
            if len(found) == count:
                break
    return found


async def until_failure(stream: AsyncIterator[T]) -> tuple[list[T], GovernorError]:
    """Return the items before the failure, and the failure."""
    found: list[T] = []
    try:
        async for item in stream:
            found.append(item)  # noqa: PERF401 - a comprehension would lose the items before the failure
    except GovernorError as error:
        return found, error
    raise AssertionError("the stream ended without an error")


async def failure_of(awaitable: Awaitable[object]) -> GovernorError:
    with pytest.raises(GovernorError) as raised:
        await awaitable
    return raised.value


async def test_a_change_is_sent_with_the_token_and_its_response_returned(serve: Serve) -> None:
    requests: list[tuple[str, ChangeRequest]] = []
    accepted = Change("c1", ChangeState.ACCEPTED, "admin", "why", datetime(2026, 1, 1, tzinfo=UTC), 7, (), ())

    async def handler(request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=ChangeRequest)
        requests.append((request.headers["Authorization"], body))
        return web.Response(body=msgspec.json.encode(accepted), content_type="application/json")

    sent = ChangeRequest(deletions=(DocumentRef("Profile", "old"),), message="why", if_match={"Profile/old": 3})
    async with client(await serve({"POST /changes": handler})) as connection:
        assert await connection.change(sent) == accepted
    assert requests == [(f"Bearer {TOKEN}", sent)]


async def test_the_credential_is_called_before_each_request(serve: Serve) -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(body=b"[]")

    fresh = iter(["first", "second"])
    async with Client(await serve({"GET /tokens": handler}), lambda: Secret(next(fresh))) as connection:
        await connection.tokens()
        await connection.tokens()
    assert seen == ["Bearer first", "Bearer second"]


async def test_names_and_filters_are_escaped(serve: Serve) -> None:
    seen: list[tuple[str, dict[str, str]]] = []
    view = DocumentView("Profile", "a/b", 2, 5, None)

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path, dict(request.query)))
        body: object = [] if request.path.endswith("revisions") else view
        return web.Response(body=msgspec.json.encode(body))

    server = await serve({"GET /documents/{kind}/{name}": handler, "GET /revisions": handler})
    async with client(server) as connection:
        assert await connection.document(DocumentRef("Profile", "a/b"), version=2) == view
        assert await connection.revisions(limit=3, document=DocumentRef("Profile", "x&y")) == ()
    assert seen == [
        (f"{PREFIX}/documents/Profile/a/b", {"version": "2"}),
        (f"{PREFIX}/revisions", {"limit": "3", "document": "Profile/x&y"}),
    ]


async def test_a_problem_is_raised_as_the_same_error(serve: Serve) -> None:
    sent = invalid("document-invalid", "Profile/x is not valid", [Detail("wrong", document="Profile/x", path="spec")])
    async with client(await serve({"POST /changes": rejecting(sent)})) as connection:
        error = await failure_of(connection.change(ChangeRequest()))
    assert (error.kind, error.code, error.message, error.details) == (sent.kind, sent.code, sent.message, sent.details)


async def test_a_rejected_token_is_an_unauthenticated_error_that_does_not_repeat_it(serve: Serve) -> None:
    rejection = GovernorError(Kind.UNAUTHENTICATED, "token-refused", "the token is not known")
    server = await serve({"GET /runtimes": rejecting(rejection), "GET /runtimes/r1/watch": rejecting(rejection)})
    async with client(server) as connection:
        errors = [await failure_of(connection.runtimes()), await failure_of(watched(connection, 1))]
    assert [error.kind for error in errors] == [Kind.UNAUTHENTICATED] * 2
    assert all(TOKEN not in f"{error!s} {error!r} {error.__cause__!r}" for error in errors)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (responding("<html>", content_type="text/html"), Kind.INTERNAL),
        (responding({"unexpected": True}), Kind.INTERNAL),
        (responding("no such page", 404, "text/html"), Kind.INTERNAL),
        (responding("not a problem", 400, "application/problem+json"), Kind.INTERNAL),
        (responding("moved", 302, "text/html"), Kind.INTERNAL),
        (responding("bad gateway", 502, "text/html"), Kind.UNAVAILABLE),
    ],
)
async def test_a_foreign_response_names_the_server(serve: Serve, handler: Handler, kind: Kind) -> None:
    server = await serve({"GET /runtimes": handler, "GET /runtimes/r1/watch": handler})
    async with client(server) as connection:
        error = await failure_of(connection.runtimes())
        stream_error = await failure_of(watched(connection, 1))
    assert (error.kind, stream_error.kind) == (kind, kind)
    assert server in error.message
    assert server in stream_error.message


async def test_a_redirect_does_not_carry_the_token_away(serve: Serve) -> None:
    reached: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response(body=b"[]")

    async def redirect(_request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{target}{PREFIX}/tokens")

    target = await serve({"GET /tokens": elsewhere})
    async with client(await serve({"GET /tokens": redirect})) as connection:
        error = await failure_of(connection.tokens())
    assert error.code == "foreign-answer"
    assert reached == []


async def test_an_unreachable_server_is_unavailable(unused_tcp_port: int) -> None:
    server = f"http://127.0.0.1:{unused_tcp_port}"
    async with client(server) as connection:
        error = await failure_of(connection.runtimes())
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "unreachable")
    assert server in error.message


async def test_a_missing_response_is_a_deadline_error(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.Response:
        await stay_idle(request)
        raise AssertionError

    async with client(await serve({"GET /runtimes": handler}), timeout_s=0.05) as connection:
        error = await failure_of(connection.runtimes())
    assert (error.kind, error.code) == (Kind.DEADLINE, "no-answer")


async def test_an_aborted_response_is_unavailable(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"[")
        await abort(request)
        return response

    async with client(await serve({"GET /runtimes": handler})) as connection:
        error = await failure_of(connection.runtimes())
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "connection-lost")


@pytest.mark.parametrize(
    "server",
    [
        "127.0.0.1:8420",
        "ftp://127.0.0.1",
        "http://",
        "http://:80",
        "http://127.0.0.1:x",
        "http://user:pw@127.0.0.1",
        "",
    ],
)
def test_an_invalid_url_is_rejected_without_repeating_it(server: str) -> None:
    with pytest.raises(GovernorError) as raised:
        client(server)
    assert raised.value.code == "server-address"
    assert "pw" not in str(raised.value)


def test_plain_http_to_another_machine_is_rejected() -> None:
    with pytest.raises(GovernorError) as raised:
        client("http://governor.example.com")
    assert raised.value.code == "plain-text"


async def test_a_client_that_is_not_open_raises() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await client("http://127.0.0.1:1").runtimes()


async def test_a_report_is_sent_to_its_runtime(serve: Serve) -> None:
    received: list[Report] = []

    async def handler(request: web.Request) -> web.Response:
        received.append(msgspec.json.decode(await request.read(), type=Report))
        return web.Response(status=204)

    report = Report("r1", 3, 1, "sha256:x", 1, 1, datetime(2026, 1, 1, tzinfo=UTC), "agent", (), ())
    async with client(await serve({"POST /runtimes/r1/reports": handler})) as connection:
        await connection.report(report)
    assert received == [report]


async def test_a_watch_yields_deliveries_across_chunks_and_keep_alives(serve: Serve) -> None:
    first, second = delivery_event(1), delivery_event(2)
    chunks = (events.KEEPALIVE, first[:20], first[20:] + second[:5], second[5:])
    server = await serve({"GET /runtimes/r1/watch": streaming(*chunks, then=stay_idle)})
    async with client(server) as connection:
        found = await watched(connection, 2)
    assert [item.payload for item in found] == ['{"sequence":1}', '{"sequence":2}']


async def test_a_watch_sends_the_position_of_its_last_delivery(serve: Serve) -> None:
    seen: list[str | None] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Last-Event-ID"))
        return await streaming(delivery_event(9), then=stay_idle)(request)

    async with client(await serve({"GET /runtimes/r1/watch": handler})) as connection:
        await watched(connection, 1)
        await watched(connection, 1, DeliveryPosition("", 8))
        await watched(connection, 1, DeliveryPosition("i1", 8, "d1"))
    assert seen == [None, "8", "i1.8.d1"]


async def test_a_notice_is_resolved_to_its_delivery(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "FETCH_JITTER_S", 0.001)
    large = SignedDelivery('{"sequence":5}', "key", "signature")
    server = await serve(
        {
            "GET /runtimes/r1/watch": streaming(notice_event(5), delivery_event(6), then=stay_idle),
            "GET /runtimes/r1/bundles/5": responding(large),
        }
    )
    async with client(server) as connection:
        found = await watched(connection, 2)
    assert [item.payload for item in found] == ['{"sequence":5}', '{"sequence":6}']


async def test_a_closed_stream_is_unavailable_and_a_partial_event_is_not_yielded(serve: Serve) -> None:
    server = await serve({"GET /runtimes/r1/watch": streaming(delivery_event(1), delivery_event(2)[:-1])})
    async with client(server) as connection:
        found, error = await until_failure(connection.watch("r1"))
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "stream-ended")
    assert [item.payload for item in found] == ['{"sequence":1}']


async def test_a_connection_aborted_in_the_middle_of_an_event_is_unavailable(serve: Serve) -> None:
    server = await serve({"GET /runtimes/r1/watch": streaming(delivery_event(1)[:-5], then=abort)})
    async with client(server) as connection:
        error = await failure_of(watched(connection, 1))
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "connection-lost")


async def test_an_idle_stream_is_unavailable(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_TIMEOUT_S", 0.05)
    server = await serve({"GET /runtimes/r1/watch": streaming(then=stay_idle)})
    async with client(server) as connection:
        error = await failure_of(watched(connection, 1))
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "no-answer")


async def test_garbage_in_a_stream_names_the_server(serve: Serve) -> None:
    garbage = events.encode(events.Event("delivery", "{not json"))
    server = await serve({"GET /runtimes/r1/watch": streaming(garbage, then=stay_idle)})
    async with client(server) as connection:
        error = await failure_of(watched(connection, 1))
    assert (error.kind, error.code) == (Kind.INTERNAL, "answer-unreadable")
    assert server in error.message


async def test_closing_a_watch_early_closes_its_connection(serve: Serve) -> None:
    closed = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await streaming(delivery_event(1), then=stay_idle)(request)
        finally:
            closed.set()

    async with client(await serve({"GET /runtimes/r1/watch": handler})) as connection:
        await watched(connection, 1)
        assert await client_is_usable(connection)
    async with asyncio.timeout(10):
        await closed.wait()


async def client_is_usable(connection: Client) -> bool:
    """Whether another request gets its response."""
    return (await failure_of(connection.runtimes())).code == "foreign-answer"


async def test_progress_ends_with_the_complete_state(serve: Serve) -> None:
    states = [RevisionProgress(7, False, ()), RevisionProgress(7, True, ())]
    server = await serve({"GET /revisions/7/progress": streaming(*map(progress_event, states), then=stay_idle)})
    async with client(server) as connection:
        assert [state async for state in connection.progress(7)] == states


async def test_progress_that_ends_before_it_is_complete_is_unavailable(serve: Serve) -> None:
    server = await serve({"GET /revisions/7/progress": streaming(progress_event(RevisionProgress(7, False, ())))})
    async with client(server) as connection:
        seen, error = await until_failure(connection.progress(7))
    assert error.kind is Kind.UNAVAILABLE
    assert [state.complete for state in seen] == [False]
