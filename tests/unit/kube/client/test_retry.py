"""Retries, backoff, timeouts, the circuit breaker and credential renewal."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import attr
import msgspec
import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits, Request, Transport, connections
from governor.kube.config.access import Access, Impersonation
from governor.kube.errors import NO_API, ApiError
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.flowcontrol.limiter import Rate
from governor.process.proxy import Proxy
from governor.process.telemetry.instruments import Registry
from governor.values.secret import Secret
from testbed.waiting import until
from tests.unit.kube.client.test_discovery import APPS, CORE, aggregated
from tests.unit.kube.http_bed import (
    QUICK,
    HttpServer,
    RecordingClock,
    drop_connection,
    failure,
    never_respond,
    rejected,
)

GET = Request("GET", "/api")
PUT = Request("PUT", "/api", body=b"{}")
POST = Request("POST", "/api", body=b"{}", retryable=False)
OK = web.Response(body=b"{}")
BAD_GATEWAY = web.Response(status=502, body=b"<html>Bad Gateway</html>")
INTERNAL_ERROR = web.Response(status=500, body=failure(500, "InternalError"))
PLAIN_INTERNAL_ERROR = web.Response(status=500, body=b"oops")
UNAVAILABLE = web.Response(status=503, body=failure(503, "ServiceUnavailable"))
NOT_FOUND = web.Response(status=404, body=failure(404, "NotFound"))
THREE_FAILURES = BreakerPolicy(failures=3, backoff=Backoff(initial_s=60.0, max_s=60.0))
ONE_ATTEMPT = msgspec.structs.replace(QUICK, attempts=1, breaker=THREE_FAILURES)


def too_many(seconds: int | None, status: int = 429) -> web.Response:
    headers = {} if seconds is None else {"Retry-After": str(seconds)}
    return web.Response(status=status, body=failure(status, "TooManyRequests"), headers=headers)


class TestRetries:
    @pytest.mark.parametrize(
        "bad",
        [
            PLAIN_INTERNAL_ERROR,
            BAD_GATEWAY,
            UNAVAILABLE,
            too_many(None),
            too_many(0),
            too_many(0, 500),
            too_many(0, 503),
            drop_connection,
        ],
    )
    async def test_transient_failures_are_retried(self, transport: Transport, bad: web.Response) -> None:
        async with HttpServer(bad, bad, OK) as server:
            assert await server.client(transport).send(GET) == b"{}"
            assert len(server.requests) == 3

    @pytest.mark.parametrize("bad", [INTERNAL_ERROR, BAD_GATEWAY, too_many(None), too_many(0, 503), drop_connection])
    async def test_a_request_that_may_have_been_executed_is_not_retried(
        self, transport: Transport, bad: web.Response
    ) -> None:
        async with HttpServer(bad, OK) as server:
            await rejected(server.client(transport), POST)
            assert len(server.requests) == 1

    async def test_a_deferred_request_is_retried_even_if_it_is_not_retryable(self, transport: Transport) -> None:
        async with HttpServer(too_many(0), OK) as server:
            assert await server.client(transport).send(POST) == b"{}"
            assert server.bodies == [b"{}", b"{}"]

    @pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422, 501])
    async def test_permanent_failures_are_not_retried(self, transport: Transport, status: int) -> None:
        async with HttpServer(web.Response(status=status, body=failure(status)), OK) as server:
            await rejected(server.client(transport), GET)
            assert len(server.requests) == 1

    async def test_an_internal_error_of_the_api_server_is_not_retried(self, transport: Transport) -> None:
        async with HttpServer(INTERNAL_ERROR, OK) as server:
            error = await rejected(server.client(transport), PUT)
            assert (error.kind, len(server.requests)) == (Kind.INTERNAL, 1)

    async def test_the_number_of_attempts_is_bounded(self, transport: Transport) -> None:
        async with HttpServer(UNAVAILABLE) as server:
            error = await rejected(server.client(transport), GET)
            assert (error.kind, len(server.requests)) == (Kind.UNAVAILABLE, QUICK.attempts)

    async def test_a_request_that_was_never_sent_is_retried_even_if_it_is_not_retryable(self) -> None:
        registry = Registry()
        async with Transport(registry=registry) as transport:
            async with HttpServer(OK) as server:
                client = server.client(transport)
            error = await rejected(client, POST)
        assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-unreachable")
        attempts = registry.value("rest_client_requests_total", {"code": "<error>", "method": "POST"})
        assert attempts == QUICK.attempts


class TestBackoff:
    @pytest.fixture
    def clock(self) -> RecordingClock:
        return RecordingClock()

    @pytest.fixture
    async def transport(self, clock: RecordingClock) -> AsyncIterator[Transport]:
        async with Transport(clock) as transport:
            yield transport

    @pytest.mark.parametrize(
        "bad", [too_many(5), too_many(5, 503), web.Response(status=429, body=failure(429, retryAfterSeconds=5))]
    )
    async def test_retry_after_is_honoured(
        self, transport: Transport, clock: RecordingClock, bad: web.Response
    ) -> None:
        async with HttpServer(bad, bad, OK) as server:
            assert await server.client(transport).send(GET) == b"{}"
        assert len(clock.waits_s) == 2
        assert all(5.0 < wait_s <= 5.0 + QUICK.backoff.max_s for wait_s in clock.waits_s)

    async def test_delays_grow_up_to_the_maximum(self, transport: Transport, clock: RecordingClock) -> None:
        limits = msgspec.structs.replace(QUICK, attempts=7, backoff=Backoff(initial_s=1.0, max_s=4.0))
        async with HttpServer(UNAVAILABLE) as server:
            await rejected(server.client(transport, limits), GET)
        assert len(clock.waits_s) == 6
        assert all(1.0 <= wait_s <= limits.backoff.ceiling_s(n) for n, wait_s in enumerate(clock.waits_s, start=1))
        assert len(set(clock.waits_s)) == 6

    async def test_a_retry_after_beyond_the_timeout_fails_immediately(self, transport: Transport) -> None:
        async with HttpServer(too_many(60), OK) as server:
            error = await rejected(server.client(transport), GET)
            assert error.kind is Kind.EXHAUSTED
            assert "retry after 60 s" in str(error)
            assert isinstance(error, ApiError)
            assert error.retry_after_s == 60.0
            assert len(server.requests) == 1

    async def test_cancellation_during_backoff_sends_nothing_more(self) -> None:
        clock = VirtualClock()
        async with Transport(clock) as transport, HttpServer(too_many(5), OK) as server:
            sending = asyncio.create_task(server.client(transport).send(GET))
            await until(lambda: asyncio.sleep(0, clock.sleepers))
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await clock.advance(60)
            assert len(server.requests) == 1


class TestTimeouts:
    async def test_a_server_that_does_not_respond_times_out(self, transport: Transport) -> None:
        async with HttpServer(never_respond) as server:
            error = await rejected(server.client(transport), Request("GET", "/api", timeout_s=0.05))
            assert error.kind is Kind.DEADLINE
            assert "no response within 0.05 s" in str(error)

    async def test_a_timeout_raises_the_error_of_an_earlier_attempt(self, transport: Transport) -> None:
        async with HttpServer(UNAVAILABLE, never_respond) as server:
            error = await rejected(server.client(transport), msgspec.structs.replace(PUT, timeout_s=0.2))
            assert (error.kind, len(server.requests)) == (Kind.UNAVAILABLE, 2)
            assert "this is ServiceUnavailable" in str(error)

    async def test_a_timeout_of_a_request_that_may_have_been_executed_is_not_hidden(self, transport: Transport) -> None:
        """The 429 alone would mean that the server has not executed it."""
        deferred = web.Response(status=429, body=failure(429, "TooManyRequests"), headers={"Retry-After": "0"})
        async with HttpServer(deferred, never_respond) as server:
            error = await rejected(server.client(transport), msgspec.structs.replace(POST, timeout_s=0.2))
            assert (error.kind, len(server.requests)) == (Kind.DEADLINE, 2)

    async def test_a_stream_that_does_not_begin_times_out(self, transport: Transport) -> None:
        async with HttpServer(never_respond) as server:
            with pytest.raises(GovernorError) as caught:
                await anext(server.client(transport).stream_lines(Request("GET", "/api", timeout_s=0.05)))
            assert caught.value.kind is Kind.DEADLINE

    async def test_a_timeout_in_the_rate_limiter_is_no_failure_of_the_server(self, transport: Transport) -> None:
        limits = msgspec.structs.replace(ONE_ATTEMPT, rate=Rate(per_s=0.001, burst=1))
        async with HttpServer(OK) as server:
            client = server.client(transport, limits)
            await client.send(GET)
            for _ in range(THREE_FAILURES.failures + 1):
                error = await rejected(client, Request("GET", "/api", timeout_s=0.01))
                assert (error.kind, error.code) == (Kind.DEADLINE, "kube-deadline")
                assert "rate limit" in str(error)
            assert len(server.requests) == 1

    async def test_streams_are_rate_limited_too(self, transport: Transport) -> None:
        limits = msgspec.structs.replace(ONE_ATTEMPT, rate=Rate(per_s=0.001, burst=1))
        async with HttpServer(web.Response(body=b"one\ntwo")) as server:
            client = server.client(transport, limits)
            assert [line async for line in client.stream_lines(GET)] == [b"one", b"two"]
            assert (await rejected(client, Request("GET", "/api", timeout_s=0.01))).kind is Kind.DEADLINE


def limit_connecting(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Replace ``CONNECT_TIMEOUT_S``."""
    timeout = {name: value for name, value in attr.asdict(connections._TIMEOUT).items() if value is not None}
    shorter = {name: seconds if value == connections.CONNECT_TIMEOUT_S else value for name, value in timeout.items()}
    monkeypatch.setattr(connections, "_TIMEOUT", aiohttp.ClientTimeout(**shorter))


class TestCircuitBreaker:
    @pytest.mark.parametrize("bad", [BAD_GATEWAY, web.Response(status=503), drop_connection])
    async def test_repeated_failures_open_the_circuit(self, transport: Transport, bad: web.Response) -> None:
        async with HttpServer(bad) as server:
            client = server.client(transport, ONE_ATTEMPT)
            for _ in range(THREE_FAILURES.failures):
                await rejected(client, GET)
            before = len(server.requests)
            error = await rejected(client, GET)
            assert (error.kind, error.code) == (Kind.UNAVAILABLE, "circuit-open")
            assert len(server.requests) == before

    async def test_repeated_timeouts_open_the_circuit(self, transport: Transport) -> None:
        async with HttpServer(never_respond) as server:
            client = server.client(transport, ONE_ATTEMPT)
            for _ in range(THREE_FAILURES.failures):
                await rejected(client, Request("GET", "/api", timeout_s=0.01))
            assert (await rejected(client, GET)).code == "circuit-open"

    async def test_timeouts_of_writes_do_not_open_the_circuit(self, transport: Transport) -> None:
        """An admission webhook may hang."""
        async with HttpServer(never_respond) as server:
            client = server.client(transport, ONE_ATTEMPT)
            for _ in range(THREE_FAILURES.failures + 1):
                error = await rejected(client, msgspec.structs.replace(PUT, timeout_s=0.01))
                assert error.code == "kube-deadline"

    @pytest.mark.parametrize("hanging", ["server", "proxy"])
    async def test_writes_to_a_server_that_hangs_open_the_circuit_by_their_handshakes(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, hanging: str
    ) -> None:
        limit_connecting(monkeypatch, 0.01)
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            access = {
                "server": Access(f"https://{address}"),
                "proxy": Access("https://api.example:6443", proxy=Proxy(f"http://{address}")),
            }[hanging]
            client = Client(transport, access, ONE_ATTEMPT)
            for _ in range(THREE_FAILURES.failures):
                assert (await rejected(client, msgspec.structs.replace(PUT, timeout_s=5.0))).code == "kube-unreachable"
            assert (await rejected(client, PUT)).code == "circuit-open"

    async def test_timeouts_do_not_open_the_circuit_of_a_server_that_responds_to_other_requests(
        self, transport: Transport
    ) -> None:
        """A conversion webhook or an aggregated server may hang."""

        async def hang_on_ships(request: web.Request) -> web.StreamResponse:
            return await never_respond(request) if request.path == "/ships" else web.Response(body=b"{}")

        async with HttpServer(hang_on_ships) as server:
            client = server.client(transport, ONE_ATTEMPT)
            request, count = Request("GET", "/ships", timeout_s=0.1), THREE_FAILURES.failures
            ships = [asyncio.create_task(rejected(client, request)) for _ in range(count)]
            await until(lambda: asyncio.sleep(0, len(server.requests) == count))
            await client.send(GET)
            assert [(await each).code for each in ships] == ["kube-deadline"] * count
            assert await client.send(GET) == b"{}"

    async def test_an_open_circuit_rejects_streams_too(self, transport: Transport) -> None:
        async with HttpServer(BAD_GATEWAY) as server:
            client = server.client(transport, ONE_ATTEMPT)
            for _ in range(THREE_FAILURES.failures):
                with pytest.raises(ApiError):
                    await anext(client.stream_lines(GET))
            with pytest.raises(GovernorError) as caught:
                await anext(client.stream_lines(GET))
            assert caught.value.code == "circuit-open"

    @pytest.mark.parametrize("response", [INTERNAL_ERROR, too_many(None, 503), too_many(None), NOT_FOUND])
    async def test_errors_of_the_api_server_do_not_open_the_circuit(
        self, transport: Transport, response: web.Response
    ) -> None:
        async with HttpServer(response) as server:
            client = server.client(transport, ONE_ATTEMPT)
            for _ in range(THREE_FAILURES.failures + 2):
                assert isinstance(await rejected(client, GET), ApiError)
            assert len(server.requests) == THREE_FAILURES.failures + 2

    async def test_a_404_page_is_neither_a_success_nor_a_failure(self, transport: Transport) -> None:
        """An API server sends it for a kind that it does not serve, and a load balancer for a server that is gone."""
        page = web.Response(status=404, body=b"404 page not found")
        async with HttpServer(BAD_GATEWAY, page, BAD_GATEWAY, *[page] * 4, BAD_GATEWAY, OK) as server:
            client = server.client(transport, ONE_ATTEMPT)
            codes = [(await rejected(client, GET)).code for _ in range(8)]
            assert codes.count(NO_API) == 5
            assert (await rejected(client, GET)).code == "circuit-open"

    async def test_errors_of_the_api_server_do_not_reset_the_failure_count(self, transport: Transport) -> None:
        async with HttpServer(BAD_GATEWAY, INTERNAL_ERROR, BAD_GATEWAY, INTERNAL_ERROR, BAD_GATEWAY, OK) as server:
            client = server.client(transport, ONE_ATTEMPT)
            for _ in range(5):
                await rejected(client, GET)
            assert (await rejected(client, GET)).code == "circuit-open"

    async def test_a_success_resets_the_failure_count(self, transport: Transport) -> None:
        async with HttpServer(BAD_GATEWAY, BAD_GATEWAY, NOT_FOUND, BAD_GATEWAY, BAD_GATEWAY, OK) as server:
            client = server.client(transport, ONE_ATTEMPT)
            for _ in range(5):
                await rejected(client, GET)
            assert await client.send(GET) == b"{}"

    async def test_circuits_of_clusters_are_independent(self, transport: Transport) -> None:
        async with HttpServer(BAD_GATEWAY) as bad, HttpServer(OK) as good:
            client = bad.client(transport, ONE_ATTEMPT)
            for _ in range(THREE_FAILURES.failures + 1):
                await rejected(client, GET)
            assert await good.client(transport, ONE_ATTEMPT).send(GET) == b"{}"


class TestCredentials:
    async def test_a_rejected_token_is_read_again_and_the_request_retried_once(
        self, transport: Transport, tmp_path: Path
    ) -> None:
        token = tmp_path / "token"
        token.write_text("old")

        async def only_new(request: web.Request) -> web.StreamResponse:
            accepted = request.headers["Authorization"] == "Bearer new"
            return web.Response(status=200 if accepted else 401, body=b"{}")

        async with HttpServer(only_new) as server:
            client = server.client(transport, token=token)
            assert (await rejected(client, POST)).kind is Kind.UNAUTHENTICATED
            assert len(server.requests) == 1
            token.write_text("new")
            assert await client.send(POST) == b"{}"
            assert [line async for line in client.stream_lines(GET)] == [b"{}"]
            assert len(server.requests) == 4

    async def test_a_rejected_inline_token_is_not_retried(self, transport: Transport) -> None:
        async with HttpServer(web.Response(status=401, body=failure(401, "Unauthorized"))) as server:
            error = await rejected(server.client(transport, token=Secret("fixed")), GET)
            assert error.kind is Kind.UNAUTHENTICATED
            assert len(server.requests) == 1

    @pytest.mark.parametrize("token", ["two words", "line\nline", "smørrebrød"])
    async def test_a_malformed_token_is_an_error_that_does_not_quote_it(self, transport: Transport, token: str) -> None:
        async with HttpServer(OK) as server:
            error = await rejected(server.client(transport, token=Secret(token)), GET)
            assert (error.code, len(server.requests)) == ("kube-token", 0)
            assert token not in str(error)

    async def test_headers_contain_token_user_agent_and_impersonation(self, transport: Transport) -> None:
        user = Impersonation("ann", "7", ("dev", "ops"), (("example.com/scope", "all"),))
        async with HttpServer(OK) as server:
            await server.client(transport, token=Secret("t"), impersonation=user).send(GET)
            headers = server.requests[0].headers
            assert headers["Authorization"] == "Bearer t"
            assert headers["User-Agent"].startswith("governor/")
            assert (headers["Impersonate-User"], headers["Impersonate-Uid"]) == ("ann", "7")
            assert headers.getall("Impersonate-Group") == ["dev", "ops"]
            assert headers["Impersonate-Extra-example.com%2Fscope"] == "all"

    async def test_the_servers_path_prefixes_every_path(self, transport: Transport) -> None:
        async with HttpServer(OK) as server:
            client = Client(transport, Access(f"{server.url}/k8s/c-1"), QUICK)
            await client.send(Request("GET", "/api/v1/pods", {"labelSelector": "a=b,c in (d)"}))
            assert server.requests[0].path == "/k8s/c-1/api/v1/pods"
            assert dict(server.requests[0].query) == {"labelSelector": "a=b,c in (d)"}


class TestUpdatedAccess:
    async def test_the_next_request_uses_the_new_credential(self, transport: Transport) -> None:
        async with HttpServer(OK) as server:
            client = server.client(transport, token=Secret("old"))
            await client.send(GET)
            client.update_access(Access(server.url, token=Secret("new"), impersonation=Impersonation("ann")))
            await client.send(GET)
            headers = [request.headers for request in server.requests]
            assert [each["Authorization"] for each in headers] == ["Bearer old", "Bearer new"]
            assert [each.get("Impersonate-User") for each in headers] == [None, "ann"]

    async def test_a_request_in_flight_ends_with_the_old_credential(self, transport: Transport) -> None:
        responding = asyncio.Event()

        async def respond_later(_: web.Request) -> web.StreamResponse:
            await responding.wait()
            return web.Response(body=b"{}")

        async with HttpServer(respond_later) as server:
            client = server.client(transport, token=Secret("old"))
            sending = asyncio.create_task(client.send(GET))
            await until(lambda: asyncio.sleep(0, server.requests))
            client.update_access(Access(server.url, token=Secret("new")))
            responding.set()
            assert await sending == b"{}"
            assert [request.headers["Authorization"] for request in server.requests] == ["Bearer old"]

    async def test_a_request_whose_old_credential_is_rejected_is_sent_with_the_new_one(
        self, transport: Transport
    ) -> None:
        async def only_new(request: web.Request) -> web.StreamResponse:
            if request.headers["Authorization"] == "Bearer new":
                return web.Response(body=b"{}")
            client.update_access(Access(server.url, token=Secret("new")))
            return web.Response(status=401, body=failure(401, "Unauthorized"))

        async with HttpServer(only_new) as server:
            client = server.client(transport, token=Secret("old"))
            assert await client.send(GET) == b"{}"
            assert len(server.requests) == 2

    async def test_the_circuit_and_the_rate_limit_stay_as_they_are(self, transport: Transport) -> None:
        limits = msgspec.structs.replace(ONE_ATTEMPT, rate=Rate(per_s=0.001, burst=4))
        async with HttpServer(OK, BAD_GATEWAY) as server:
            client = server.client(transport, limits)
            await client.send(GET)
            for number in range(THREE_FAILURES.failures):
                client.update_access(Access(server.url, token=Secret(f"t{number}")))
                await rejected(client, GET)
            assert (await rejected(client, GET)).code == "circuit-open"
            assert len(server.requests) == limits.rate.burst

    async def test_the_discovery_cache_is_kept(self, transport: Transport) -> None:
        documents = {"/api": CORE, "/apis": aggregated(APPS)}

        async def respond(request: web.Request) -> web.StreamResponse:
            return web.Response(body=msgspec.json.encode(documents[request.path]))

        async with HttpServer(respond) as server:
            client = server.client(transport, token=Secret("old"))
            await client.discovery.find("apps", "Deployment")
            client.update_access(Access(server.url, token=Secret("new")))
            await client.discovery.find("apps", "Deployment")
            assert len(server.requests) == 2

    async def test_an_equal_access_keeps_the_credential(self, transport: Transport, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("t")
        async with HttpServer(OK) as server:
            client = server.client(transport, token=token)
            await client.send(GET)
            token.unlink()
            client.update_access(Access(server.url, token=token))
            assert await client.send(GET) == b"{}"

    async def test_another_server_is_refused(self, transport: Transport) -> None:
        async with HttpServer(OK) as server:
            client = server.client(transport, token=Secret("old"))
            with pytest.raises(GovernorError, match="another server") as caught:
                client.update_access(Access("https://other.example", token=Secret("new")))
            assert (caught.value.kind, caught.value.code) == (Kind.PRECONDITION, "kube-server-changed")
            await client.send(GET)
            assert server.requests[0].headers["Authorization"] == "Bearer old"


async def test_requests_are_counted_by_code_and_method() -> None:
    registry = Registry()
    async with Transport(registry=registry) as transport, HttpServer(UNAVAILABLE, OK, OK, NOT_FOUND) as server:
        client = server.client(transport)
        await client.send(GET)
        assert [line async for line in client.stream_lines(GET)] == [b"{}"]
        await rejected(client, Request("DELETE", "/api/x"))
    counts = {
        (code, method): registry.value("rest_client_requests_total", {"code": code, "method": method})
        for code, method in [("200", "GET"), ("503", "GET"), ("404", "DELETE")]
    }
    assert counts == {("200", "GET"): 2.0, ("503", "GET"): 1.0, ("404", "DELETE"): 1.0}
    assert registry.value("rest_client_request_duration_seconds_count", {"verb": "GET"}) == 3.0
    assert "127.0.0.1" not in registry.text()


def test_the_default_rate_limit() -> None:
    assert Limits().rate == Rate(per_s=50.0, burst=100)
