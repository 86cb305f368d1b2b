"""The client when the way to its API server breaks: what it repeats, what it does not, and what it says."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config.access import Access
from governor.kube.errors import ApiError
from governor.kube.objects import ApiResource
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.values.secret import Secret
from testbed.kube.api_faults import Asked
from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import Authority
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi
from tests.unit.kube.http_bed import HastyClock

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
ONCE = Limits(attempts=1)


def config_map(namespace: str, name: str = "a", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def is_write(asked: Asked) -> bool:
    return asked.method in ("POST", "PATCH")


async def refused(awaited: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await awaited
    return caught.value


class TestAServerThatPutsOff:
    async def test_the_client_waits_as_long_as_it_is_told(self, faults: FaultyApi, namespace: str) -> None:
        clock = HastyClock()
        async with Transport(clock) as transport:
            client = Client(transport, faults.access)
            faults.answer(429, times=2, which=is_write, headers={"Retry-After": "7"})
            await client.create(CONFIG_MAPS, config_map(namespace), manager="first")
        assert len(clock.waits_s) == 2
        assert all(wait_s >= 7.0 for wait_s in clock.waits_s)
        assert faults.count(is_write) == 3

    async def test_a_wait_that_is_too_long_is_told_at_once(self, faults: FaultyApi, namespace: str) -> None:
        faults.answer(429, which=is_write, headers={"Retry-After": "3600"})
        error = await refused(faults.client.create(CONFIG_MAPS, config_map(namespace), manager="first"))
        assert isinstance(error, ApiError)
        assert (error.kind, error.retry_after_s) == (Kind.EXHAUSTED, 3600.0)
        assert faults.count(is_write) == 1


class TestAServerThatFails:
    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    async def test_what_can_be_repeated_is(self, faults: FaultyApi, namespace: str, status: int) -> None:
        faults.answer(status, times=2, which=is_write)
        applied = await faults.client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert (applied["data"], faults.count(is_write)) == ({"k": "1"}, 3)

    async def test_what_cannot_is_not(self, faults: FaultyApi, client: Client, namespace: str) -> None:
        faults.answer(500, which=is_write)
        await refused(faults.client.create(CONFIG_MAPS, config_map(namespace), manager="first"))
        assert faults.count(is_write) == 1
        assert (await refused(client.get(CONFIG_MAPS, "a", namespace))).kind is Kind.NOT_FOUND

    async def test_a_page_of_a_proxy_is_shown_as_such(self, faults: FaultyApi, transport: Transport) -> None:
        client = Client(transport, faults.access, ONCE)
        faults.answer(502, content=b"<html><title>Bad Gateway</title></html>")
        error = await refused(client.send(Request("GET", "/api")))
        assert "in front of the API server: Bad Gateway" in str(error)


class TestLostAnswers:
    async def test_an_apply_whose_answer_is_lost_is_repeated(self, faults: FaultyApi, namespace: str) -> None:
        faults.lose(which=is_write)
        applied = await faults.client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert (applied["data"], faults.count(is_write)) == ({"k": "1"}, 2)

    async def test_a_create_whose_answer_is_lost_is_told_as_unknown(
        self, faults: FaultyApi, client: Client, namespace: str
    ) -> None:
        faults.lose(which=is_write)
        error = await refused(faults.client.create(CONFIG_MAPS, config_map(namespace), manager="first"))
        assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-connection-lost")
        assert faults.count(is_write) == 1
        await until(lambda: self._is_there(client, namespace))

    async def _is_there(self, client: Client, namespace: str) -> bool:
        return bool([each async for each in client.list(CONFIG_MAPS, namespace, fields="metadata.name=a")])

    async def test_connections_that_died_unnoticed_cost_nothing(self, faults: FaultyApi, namespace: str) -> None:
        await faults.client.apply(CONFIG_MAPS, config_map(namespace), manager="first")
        faults.cut()
        applied = await faults.client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert applied["data"] == {"k": "1"}


class TestAServerThatIsAway:
    async def test_it_is_left_alone_and_found_again(self, faults: FaultyApi, transport: Transport) -> None:
        breaker = BreakerPolicy(failures=3, backoff=Backoff(initial_s=2.0, max_s=3.0))
        client = Client(transport, faults.access, Limits(attempts=1, breaker=breaker))
        faults.gone = True
        codes = [(await refused(client.send(Request("GET", "/api")))).code for _ in range(3)]
        assert "circuit-open" not in codes
        assert "circuit-open" in [(await refused(client.send(Request("GET", "/api")))).code for _ in range(3)]
        faults.gone = False
        await until(lambda: self._answers(client))

    async def _answers(self, client: Client) -> bool:
        try:
            return bool(await client.send(Request("GET", "/api")))
        except GovernorError as error:
            assert error.kind is Kind.UNAVAILABLE  # noqa: PT017 - or it is not raised at all
            return False

    async def test_one_that_says_nothing_is_not_waited_for_longer_than_asked(self, faults: FaultyApi) -> None:
        await faults.client.send(Request("GET", "/api"))
        faults.stall()
        error = await refused(faults.client.send(Request("GET", "/api", timeout_s=0.2)))
        assert (error.kind, error.code) == (Kind.DEADLINE, "kube-deadline")
        faults.flow()

    async def test_one_of_another_authority_is_not_talked_to(self, api: ControlPlane, transport: Transport) -> None:
        client = Client(transport, Access(api.url, Authority("other").certificate, token=Secret("t")), ONCE)
        error = await refused(client.send(Request("GET", "/api")))
        assert (error.kind, error.code) == (Kind.UNAUTHENTICATED, "kube-tls-untrusted")


class TestStreams:
    async def watch(self, client: Client, namespace: str) -> Request:
        created = await client.create(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        query = {"watch": "1", "resourceVersion": created["metadata"]["resourceVersion"]}
        return Request("GET", CONFIG_MAPS.path(namespace), query)

    async def test_one_cut_in_the_middle_of_an_event_fails_without_half_an_event(
        self, faults: FaultyApi, client: Client, namespace: str
    ) -> None:
        request = await self.watch(client, namespace)
        async with aclosing(faults.client.stream_lines(request)) as lines, asyncio.timeout(60):
            for number in range(2):
                await client.apply(CONFIG_MAPS, config_map(namespace, k=str(number)), manager="first", force=True)
                if number == 0:
                    event = msgspec.json.decode(await anext(lines))
                    assert event["object"]["data"] == {"k": "0"}
                    faults.cut_event(after_bytes=20)
            error = await refused(anext(lines))
        assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-connection-lost")

    async def test_one_that_falls_silent_can_be_left(self, faults: FaultyApi, client: Client, namespace: str) -> None:
        request = await self.watch(client, namespace)
        async with aclosing(faults.client.stream_lines(request)) as lines:
            first = asyncio.create_task(anext(lines))
            await until(lambda: asyncio.sleep(0, faults.count(lambda asked: asked.is_watch)))
            faults.silence()
            await client.apply(CONFIG_MAPS, config_map(namespace, k="2"), manager="first", force=True)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first


async def test_a_path_before_the_servers_own_is_kept(api: ControlPlane, transport: Transport, namespace: str) -> None:
    async with FaultyApi(api, transport, "/k8s/clusters/c-1") as faults:
        assert faults.url.endswith("/k8s/clusters/c-1")
        await faults.client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert [each["data"] async for each in faults.client.list(CONFIG_MAPS, namespace)] == [{"k": "1"}]
        assert (await faults.client.discovery.find("apps", "Deployment")).plural == "deployments"
