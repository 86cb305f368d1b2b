"""The proxy in front of an API server injects its faults: without them, tests of clients would prove nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from testbed.kube.api_faults import ApiFaults, ApiRequest
from testbed.kube.control_plane import ControlPlane

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


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def new_name() -> str:
    return f"faults-{uuid4().hex[:8]}"


async def status_of(session: aiohttp.ClientSession, method: str, url: str, body: object = None) -> int:
    async with session.request(method, url, json=body) as response:
        await response.read()
        return response.status


def is_write(request: ApiRequest) -> bool:
    return request.method == "POST"


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
