"""Clients that impersonate a user: what they share with the client that they are made from."""

import msgspec
import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request, Transport
from governor.kube.config.access import Access, Impersonation
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.flowcontrol.limiter import Rate
from governor.values.secret import Secret
from tests.unit.kube.client.test_discovery import APPS, CORE, aggregated
from tests.unit.kube.http_bed import QUICK, HttpServer, rejected

GET = Request("GET", "/api")
OK = web.Response(body=b"{}")
BAD_GATEWAY = web.Response(status=502, body=b"<html>Bad Gateway</html>")
ONE_FAILURE = BreakerPolicy(failures=1, backoff=Backoff(initial_s=60.0, max_s=60.0))
ANN = "system:serviceaccount:shop:ann"


async def test_only_its_own_requests_impersonate(transport: Transport) -> None:
    async with HttpServer(OK) as server:
        client = server.client(transport, token=Secret("t"))
        ann, bob = client.impersonating(ANN), client.impersonating("bob")
        for each in (ann, client, bob):
            await each.send(GET)
        assert [line async for line in ann.stream_lines(GET)] == [b"{}"]
        headers = [request.headers for request in server.requests]
        assert [each.getall("Impersonate-User", []) for each in headers] == [[ANN], [], ["bob"], [ANN]]
        assert {each["Authorization"] for each in headers} == {"Bearer t"}


async def test_it_follows_the_access_of_the_original(transport: Transport) -> None:
    async with HttpServer(OK) as server:
        client = server.client(transport, token=Secret("old"))
        ann = client.impersonating(ANN)
        await ann.send(GET)
        client.update_access(Access(server.url, token=Secret("new")))
        await ann.send(GET)
        headers = [request.headers for request in server.requests]
        assert [each["Authorization"] for each in headers] == ["Bearer old", "Bearer new"]
        assert [each["Impersonate-User"] for each in headers] == [ANN, ANN]


async def test_the_circuit_and_the_rate_limit_are_those_of_the_server(transport: Transport) -> None:
    limits = msgspec.structs.replace(QUICK, attempts=1, breaker=ONE_FAILURE, rate=Rate(per_s=0.001, burst=2))
    async with HttpServer(OK, BAD_GATEWAY) as server:
        client = server.client(transport, limits)
        await client.send(GET)
        await rejected(client.impersonating(ANN), GET)
        assert (await rejected(client, GET)).code == "circuit-open"
        assert (await rejected(client.impersonating("bob"), GET)).code == "circuit-open"
    async with HttpServer(OK) as server:
        client = server.client(transport, limits)
        ann, hurried = client.impersonating(ANN), msgspec.structs.replace(GET, timeout_s=0.01)
        for each in (client, ann):
            await each.send(GET)
        for each in (client, ann):
            assert "rate limit" in str(await rejected(each, hurried))
        assert len(server.requests) == limits.rate.burst


async def test_discovery_is_shared_and_does_not_impersonate(transport: Transport) -> None:
    documents = {"/api": CORE, "/apis": aggregated(APPS)}

    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode(documents[request.path]))

    async with HttpServer(respond) as server:
        client = server.client(transport)
        await client.impersonating(ANN).discovery.find("apps", "Deployment")
        await client.discovery.find("apps", "Deployment")
        assert [request.path for request in server.requests] == ["/api", "/apis"]
        assert not any("Impersonate-User" in request.headers for request in server.requests)


async def test_an_error_names_the_user_even_if_the_response_does_not(transport: Transport) -> None:
    async with HttpServer(web.Response(status=403, body=b"")) as server:
        error = await rejected(server.client(transport).impersonating(ANN), GET)
        assert error.kind is Kind.DENIED
        assert f"GET /api as {ANN}" in error.message


def refused(client: Client) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        client.impersonating("bob")
    return caught.value


async def test_requests_that_already_impersonate_are_refused(transport: Transport) -> None:
    async with HttpServer(OK) as server:
        plain = server.client(transport)
        for present in (plain.impersonating(ANN), server.client(transport, impersonation=Impersonation(ANN))):
            error = refused(present)
            assert (error.kind, error.code) == (Kind.PRECONDITION, "kube-impersonation")
            assert f"cannot impersonate 'bob', because they already impersonate '{ANN}'" in error.message
        bob = plain.impersonating("bob")
        plain.update_access(Access(server.url, impersonation=Impersonation(ANN)))
        assert (await rejected(bob, GET)).kind is Kind.PRECONDITION
        assert server.requests == []


@pytest.mark.parametrize("user", ["", "ann\r\nAuthorization: Bearer x"])
async def test_a_user_that_is_no_header_value_is_invalid(transport: Transport, user: str) -> None:
    with pytest.raises(GovernorError) as caught:
        Client(transport, Access("https://cluster.example")).impersonating(user)
    assert (caught.value.kind, caught.value.code) == (Kind.INVALID, "kube-impersonation")
