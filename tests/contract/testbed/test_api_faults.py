"""The proxies in front of an API server count, answer, drop, truncate, blackhole and tunnel requests."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from testbed.kube.api_faults import ApiFaults, ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.proxies.tunnels import TunnelProxy
from testbed.waiting import until

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def faults(control_plane: ControlPlane) -> AsyncIterator[ApiFaults]:
    async with ApiFaults(control_plane, control_plane.admin) as faults:
        yield faults


@pytest.fixture
async def session(control_plane: ControlPlane) -> AsyncIterator[aiohttp.ClientSession]:
    """A client without a certificate, which trusts the control plane's authority."""
    connector = aiohttp.TCPConnector(ssl=control_plane.authority.client_context())
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


def config_map(name: str, content: str = "") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"content": content}}


def new_name() -> str:
    return f"faults-{uuid4().hex[:8]}"


async def status_of(session: aiohttp.ClientSession, method: str, url: str, body: object = None) -> int:
    async with session.request(method, url, json=body) as response:
        await response.read()
        return response.status


def is_write(request: ApiRequest) -> bool:
    return request.method == "POST"


async def test_requests_pass_unchanged_and_are_counted(
    faults: ApiFaults, session: aiohttp.ClientSession, control_plane: ControlPlane
) -> None:
    name, large = new_name(), "x" * 300_000
    assert await status_of(session, "POST", faults.url + CONFIGMAPS, config_map(name, large)) == 201
    async with session.get(f"{faults.url}{CONFIGMAPS}/{name}", params={"pretty": "true"}) as response:
        through = await response.json()
    assert through == await control_plane.ask("GET", f"{CONFIGMAPS}/{name}")
    assert through["data"]["content"] == large
    assert faults.requests == [
        ApiRequest("POST", CONFIGMAPS, {}),
        ApiRequest("GET", f"{CONFIGMAPS}/{name}", {"pretty": "true"}),
    ]
    assert (faults.count(is_write), faults.count(), faults.connections) == (1, 2, 1)


async def test_the_next_matching_requests_are_answered_by_the_proxy(
    faults: ApiFaults, session: aiohttp.ClientSession
) -> None:
    url, name = faults.url + CONFIGMAPS, new_name()
    faults.answer(429, times=2, which=is_write, headers={"Retry-After": "7"}, content=b"too many")
    async with session.post(url, json=config_map(name)) as response:
        assert (response.status, response.headers["Retry-After"], await response.text()) == (429, "7", "too many")
    assert await status_of(session, "GET", f"{url}/{name}") == 404
    assert await status_of(session, "POST", url, config_map(name)) == 429
    assert await status_of(session, "POST", url, config_map(name)) == 201


async def test_a_request_with_a_dropped_response_is_executed(
    faults: ApiFaults, session: aiohttp.ClientSession, control_plane: ControlPlane
) -> None:
    name = new_name()
    faults.drop_response(which=is_write)
    with pytest.raises(aiohttp.ClientError):
        await status_of(session, "POST", faults.url + CONFIGMAPS, config_map(name))
    assert (await control_plane.ask("GET", f"{CONFIGMAPS}/{name}"))["metadata"]["name"] == name
    assert await status_of(session, "GET", f"{faults.url}{CONFIGMAPS}/{name}") == 200


async def test_an_event_is_truncated_after_the_given_bytes(
    faults: ApiFaults, session: aiohttp.ClientSession, control_plane: ControlPlane
) -> None:
    name = new_name()
    watch = {"watch": "true", "fieldSelector": f"metadata.name={name}", "resourceVersion": "0"}
    async with session.get(faults.url + CONFIGMAPS, params=watch) as response:
        faults.truncate_event(after_bytes=10)
        # Read from the beginning: what has come is withheld once the end of the connection was seen.
        reading = asyncio.create_task(response.content.readexactly(10))
        await control_plane.ask("POST", CONFIGMAPS, config_map(name))
        assert await reading == b'{"type":"A'
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.readany()
    assert await status_of(session, "GET", f"{faults.url}{CONFIGMAPS}/{name}") == 200


async def test_a_blackholed_watch_receives_nothing_while_others_work(
    faults: ApiFaults, session: aiohttp.ClientSession, control_plane: ControlPlane
) -> None:
    name = new_name()
    watch = {"watch": "true", "fieldSelector": f"metadata.name={name}", "resourceVersion": "0"}
    async with session.get(faults.url + CONFIGMAPS, params=watch) as silent:
        faults.blackhole()
        await control_plane.ask("POST", CONFIGMAPS, config_map(name))
        async with session.get(faults.url + CONFIGMAPS, params=watch) as working:
            assert json.loads(await working.content.readline())["object"]["metadata"]["name"] == name
        assert silent.content.total_bytes == 0
    assert faults.count(lambda request: request.is_watch) == faults.connections == 2


async def test_the_upstream_connection_is_closed_with_the_client(
    faults: ApiFaults, session: aiohttp.ClientSession
) -> None:
    async with session.get(faults.url + CONFIGMAPS, params={"watch": "true"}):
        assert faults.is_connected

    async def is_left() -> bool:
        return not faults.is_connected

    await until(is_left)


async def test_a_token_passes_and_the_prefix_is_stripped(
    control_plane: ControlPlane, session: aiohttp.ClientSession
) -> None:
    await control_plane.ask(
        "POST",
        "/api/v1/namespaces/default/serviceaccounts",
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": (name := new_name())}},
    )
    token = await control_plane.request_token("default", name)
    async with ApiFaults(control_plane, None, prefix="/clusters/one") as faults:
        assert faults.url.endswith("/clusters/one")
        headers = {"Authorization": f"Bearer {token}"}
        async with session.get(faults.url + CONFIGMAPS, headers=headers) as response:
            assert response.status == 403
            assert f"system:serviceaccount:default:{name}" in (await response.json())["message"]
        assert await status_of(session, "GET", faults.url.removesuffix("/clusters/one") + CONFIGMAPS) == 404
        assert faults.requests == [ApiRequest("GET", CONFIGMAPS, {})]


async def test_a_tunnel_passes_tls_unchanged(control_plane: ControlPlane) -> None:
    context: ssl.SSLContext = control_plane.authority.client_context(control_plane.admin)
    async with TunnelProxy() as proxy, aiohttp.ClientSession(proxy=proxy.url) as session:
        async with session.get(control_plane.url + CONFIGMAPS, ssl=context) as response:
            assert response.status == 200
        assert proxy.targets == [control_plane.url.removeprefix("https://")]
        async with asyncio.timeout(30), aiohttp.request("GET", proxy.url) as response:
            assert response.status == 405
