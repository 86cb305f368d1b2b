"""When a request is sent again, when a server is left alone, and how long anybody waits."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config.access import Access, Impersonation
from governor.kube.errors import ApiError
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.flowcontrol.limiter import Rate
from governor.process.telemetry.instruments import Registry
from governor.values.secret import Secret
from testbed.waiting import until
from tests.unit.kube.http_bed import QUICK, HastyClock, HttpServer, failure, hang_up, never

GET = Request("GET", "/api")
POST = Request("POST", "/api", body=b"{}", retryable=False)
OK = web.Response(body=b"{}")
GATEWAY = web.Response(status=502, body=b"<html>Bad Gateway</html>")
INTERNAL = web.Response(status=500, body=failure(500, "InternalError"))
MISSING = web.Response(status=404, body=failure(404, "NotFound"))
FEW = BreakerPolicy(failures=3, backoff=Backoff(initial_s=60.0, max_s=60.0))
ONCE = msgspec.structs.replace(QUICK, attempts=1, breaker=FEW)


def busy(seconds: int | None, status: int = 429) -> web.Response:
    headers = {} if seconds is None else {"Retry-After": str(seconds)}
    return web.Response(status=status, body=failure(status, "TooManyRequests"), headers=headers)


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    async with Transport() as transport:
        yield transport


async def refused(client: Client, request: Request) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await client.send(request)
    return caught.value


class TestRepeating:
    @pytest.mark.parametrize("bad", [INTERNAL, GATEWAY, busy(None), busy(0), busy(0, 503), hang_up])
    async def test_what_may_pass_is_tried_again(self, transport: Transport, bad: web.Response) -> None:
        async with HttpServer(bad, bad, OK) as server:
            assert await server.client(transport).send(GET) == b"{}"
            assert len(server.requests) == 3

    @pytest.mark.parametrize("bad", [INTERNAL, GATEWAY, busy(None), busy(0, 503), hang_up])
    async def test_what_may_have_been_done_already_is_not(self, transport: Transport, bad: web.Response) -> None:
        async with HttpServer(bad, OK) as server:
            await refused(server.client(transport), POST)
            assert len(server.requests) == 1

    async def test_what_was_put_off_is_sent_again_whatever_it_is(self, transport: Transport) -> None:
        async with HttpServer(busy(0), OK) as server:
            assert await server.client(transport).send(POST) == b"{}"
            assert server.bodies == [b"{}", b"{}"]

    @pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422, 501])
    async def test_what_will_not_pass_is_not_tried_again(self, transport: Transport, status: int) -> None:
        async with HttpServer(web.Response(status=status, body=failure(status)), OK) as server:
            await refused(server.client(transport), GET)
            assert len(server.requests) == 1

    async def test_the_attempts_are_bounded(self, transport: Transport) -> None:
        async with HttpServer(INTERNAL) as server:
            error = await refused(server.client(transport), GET)
            assert (error.kind, len(server.requests)) == (Kind.INTERNAL, QUICK.attempts)

    async def test_what_was_never_sent_is_tried_again_whatever_it_is(self) -> None:
        registry = Registry()
        async with Transport(registry=registry) as transport:
            async with HttpServer(OK) as server:
                client = server.client(transport)
            error = await refused(client, POST)
        assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-unreachable")
        tried = registry.value("rest_client_requests_total", {"code": "<error>", "method": "POST"})
        assert tried == QUICK.attempts


class TestWaiting:
    @pytest.fixture
    def clock(self) -> HastyClock:
        return HastyClock()

    @pytest.fixture
    async def transport(self, clock: HastyClock) -> AsyncIterator[Transport]:
        async with Transport(clock) as transport:
            yield transport

    @pytest.mark.parametrize(
        "bad", [busy(5), busy(5, 503), web.Response(status=429, body=failure(429, retryAfterSeconds=5))]
    )
    async def test_the_server_says_how_long(self, transport: Transport, clock: HastyClock, bad: web.Response) -> None:
        async with HttpServer(bad, bad, OK) as server:
            assert await server.client(transport).send(GET) == b"{}"
        assert len(clock.waits_s) == 2
        assert all(5.0 < wait_s <= 5.0 + QUICK.backoff.max_s for wait_s in clock.waits_s)

    async def test_waits_without_its_word_grow_up_to_their_limit(self, transport: Transport, clock: HastyClock) -> None:
        limits = msgspec.structs.replace(QUICK, attempts=7, backoff=Backoff(initial_s=1.0, max_s=4.0))
        async with HttpServer(INTERNAL) as server:
            await refused(server.client(transport, limits), GET)
        assert len(clock.waits_s) == 6
        assert all(1.0 <= wait_s <= limits.backoff.ceiling_s(n) for n, wait_s in enumerate(clock.waits_s, start=1))
        assert len(set(clock.waits_s)) == 6

    async def test_a_wait_longer_than_the_request_may_take_fails_at_once(self, transport: Transport) -> None:
        async with HttpServer(busy(31), OK) as server:
            error = await refused(server.client(transport), GET)
            assert error.kind is Kind.EXHAUSTED
            assert "retry after 31 s" in str(error)
            assert isinstance(error, ApiError)
            assert error.retry_after_s == 31.0
            assert len(server.requests) == 1

    async def test_who_is_cancelled_in_a_wait_sends_no_more(self) -> None:
        clock = VirtualClock()
        async with Transport(clock) as transport, HttpServer(busy(5), OK) as server:
            sending = asyncio.create_task(server.client(transport).send(GET))
            await until(lambda: asyncio.sleep(0, clock.sleepers))
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await clock.advance(60)
            assert len(server.requests) == 1


class TestTime:
    async def test_a_server_that_does_not_answer_is_not_waited_for_longer(self, transport: Transport) -> None:
        async with HttpServer(never) as server:
            error = await refused(server.client(transport), Request("GET", "/api", timeout_s=0.05))
            assert error.kind is Kind.DEADLINE
            assert "no response within 0.05 s" in str(error)

    async def test_a_stream_that_does_not_begin_is_not_waited_for_longer(self, transport: Transport) -> None:
        async with HttpServer(never) as server:
            with pytest.raises(GovernorError) as caught:
                await anext(server.client(transport).stream_lines(Request("GET", "/api", timeout_s=0.05)))
            assert caught.value.kind is Kind.DEADLINE

    async def test_who_gets_no_turn_in_time_is_told_so_and_the_server_not_blamed(self, transport: Transport) -> None:
        limits = msgspec.structs.replace(ONCE, rate=Rate(per_s=0.001, burst=1))
        async with HttpServer(OK) as server:
            client = server.client(transport, limits)
            await client.send(GET)
            for _ in range(FEW.failures + 1):
                error = await refused(client, Request("GET", "/api", timeout_s=0.01))
                assert (error.kind, error.code) == (Kind.DEADLINE, "kube-deadline")
                assert "rate limit" in str(error)
            assert len(server.requests) == 1

    async def test_streams_take_turns_too(self, transport: Transport) -> None:
        limits = msgspec.structs.replace(ONCE, rate=Rate(per_s=0.001, burst=1))
        async with HttpServer(web.Response(body=b"one\ntwo")) as server:
            client = server.client(transport, limits)
            assert [line async for line in client.stream_lines(GET)] == [b"one", b"two"]
            assert (await refused(client, Request("GET", "/api", timeout_s=0.01))).kind is Kind.DEADLINE


class TestABrokenServer:
    @pytest.mark.parametrize("bad", [GATEWAY, web.Response(status=503), hang_up])
    async def test_one_that_fails_again_and_again_is_left_alone(self, transport: Transport, bad: web.Response) -> None:
        async with HttpServer(bad) as server:
            client = server.client(transport, ONCE)
            for _ in range(FEW.failures):
                await refused(client, GET)
            before = len(server.requests)
            error = await refused(client, GET)
            assert (error.kind, error.code) == (Kind.UNAVAILABLE, "circuit-open")
            assert len(server.requests) == before

    async def test_one_that_does_not_answer_in_time_is_left_alone(self, transport: Transport) -> None:
        async with HttpServer(never) as server:
            client = server.client(transport, ONCE)
            for _ in range(FEW.failures):
                await refused(client, Request("GET", "/api", timeout_s=0.01))
            assert (await refused(client, GET)).code == "circuit-open"

    async def test_streams_to_it_are_not_opened_either(self, transport: Transport) -> None:
        async with HttpServer(GATEWAY) as server:
            client = server.client(transport, ONCE)
            for _ in range(FEW.failures):
                with pytest.raises(ApiError):
                    await anext(client.stream_lines(GET))
            with pytest.raises(GovernorError) as caught:
                await anext(client.stream_lines(GET))
            assert caught.value.code == "circuit-open"

    @pytest.mark.parametrize("answer", [INTERNAL, busy(None, 503), busy(None), MISSING])
    async def test_one_that_answers_for_itself_is_not(self, transport: Transport, answer: web.Response) -> None:
        async with HttpServer(answer) as server:
            client = server.client(transport, ONCE)
            for _ in range(FEW.failures + 2):
                assert isinstance(await refused(client, GET), ApiError)
            assert len(server.requests) == FEW.failures + 2

    async def test_failures_about_one_object_do_not_hide_those_of_the_server(self, transport: Transport) -> None:
        async with HttpServer(GATEWAY, INTERNAL, GATEWAY, INTERNAL, GATEWAY, OK) as server:
            client = server.client(transport, ONCE)
            for _ in range(5):
                await refused(client, GET)
            assert (await refused(client, GET)).code == "circuit-open"

    async def test_an_answer_ends_the_count(self, transport: Transport) -> None:
        async with HttpServer(GATEWAY, GATEWAY, MISSING, GATEWAY, GATEWAY, OK) as server:
            client = server.client(transport, ONCE)
            for _ in range(5):
                await refused(client, GET)
            assert await client.send(GET) == b"{}"

    async def test_another_cluster_is_not_touched(self, transport: Transport) -> None:
        async with HttpServer(GATEWAY) as bad, HttpServer(OK) as good:
            client = bad.client(transport, ONCE)
            for _ in range(FEW.failures + 1):
                await refused(client, GET)
            assert await good.client(transport, ONCE).send(GET) == b"{}"


class TestCredentials:
    async def test_a_refused_token_is_read_again_and_the_request_repeated_once(
        self, transport: Transport, tmp_path: Path
    ) -> None:
        token = tmp_path / "token"
        token.write_text("old")

        async def only_new(request: web.Request) -> web.StreamResponse:
            known = request.headers["Authorization"] == "Bearer new"
            return web.Response(status=200 if known else 401, body=b"{}")

        async with HttpServer(only_new) as server:
            client = server.client(transport, token=token)
            assert (await refused(client, POST)).kind is Kind.UNAUTHENTICATED
            assert len(server.requests) == 1
            token.write_text("new")
            assert await client.send(POST) == b"{}"
            assert [line async for line in client.stream_lines(GET)] == [b"{}"]
            assert len(server.requests) == 4

    async def test_a_refused_token_that_cannot_change_is_not_sent_again(self, transport: Transport) -> None:
        async with HttpServer(web.Response(status=401, body=failure(401, "Unauthorized"))) as server:
            error = await refused(server.client(transport, token=Secret("fixed")), GET)
            assert error.kind is Kind.UNAUTHENTICATED
            assert len(server.requests) == 1

    @pytest.mark.parametrize("token", ["two words", "line\nline", "smørrebrød"])
    async def test_what_cannot_be_a_token_is_an_error_that_does_not_show_it(
        self, transport: Transport, token: str
    ) -> None:
        async with HttpServer(OK) as server:
            error = await refused(server.client(transport, token=Secret(token)), GET)
            assert (error.code, len(server.requests)) == ("kube-token", 0)
            assert token not in str(error)

    async def test_headers_say_who_asks_and_for_whom(self, transport: Transport) -> None:
        whom = Impersonation("ann", "7", ("dev", "ops"), (("example.com/scope", "all"),))
        async with HttpServer(OK) as server:
            await server.client(transport, token=Secret("t"), impersonation=whom).send(GET)
            headers = server.requests[0].headers
            assert headers["Authorization"] == "Bearer t"
            assert headers["User-Agent"].startswith("governor/")
            assert (headers["Impersonate-User"], headers["Impersonate-Uid"]) == ("ann", "7")
            assert headers.getall("Impersonate-Group") == ["dev", "ops"]
            assert headers["Impersonate-Extra-example.com%2Fscope"] == "all"

    async def test_the_path_of_the_server_stands_before_every_path(self, transport: Transport) -> None:
        async with HttpServer(OK) as server:
            client = Client(transport, Access(f"{server.url}/k8s/c-1"), QUICK)
            await client.send(Request("GET", "/api/v1/pods", {"labelSelector": "a=b,c in (d)"}))
            assert server.requests[0].path == "/k8s/c-1/api/v1/pods"
            assert dict(server.requests[0].query) == {"labelSelector": "a=b,c in (d)"}


async def test_requests_are_counted_by_code_and_method() -> None:
    registry = Registry()
    async with Transport(registry=registry) as transport, HttpServer(INTERNAL, OK, OK, MISSING) as server:
        client = server.client(transport)
        await client.send(GET)
        assert [line async for line in client.stream_lines(GET)] == [b"{}"]
        await refused(client, Request("DELETE", "/api/x"))
    counts = {
        (code, method): registry.value("rest_client_requests_total", {"code": code, "method": method})
        for code, method in [("200", "GET"), ("500", "GET"), ("404", "DELETE")]
    }
    assert counts == {("200", "GET"): 2.0, ("500", "GET"): 1.0, ("404", "DELETE"): 1.0}
    assert registry.value("rest_client_request_duration_seconds_count", {"verb": "GET"}) == 3.0
    assert "127.0.0.1" not in registry.text()


def test_limits_are_those_of_a_polite_client() -> None:
    assert Limits().rate == Rate(per_s=50.0, burst=100)
