"""The client under network and server faults: retries, error messages, the circuit breaker."""

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
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.values.secret import Secret
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import Authority
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi
from tests.unit.kube.http_bed import RecordingClock

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
ONE_ATTEMPT = Limits(attempts=1)


def config_map(namespace: str, name: str = "a", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def is_write(request: ApiRequest) -> bool:
    return request.method in ("POST", "PATCH")


async def rejected(awaited: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await awaited
    return caught.value


class TestTooManyRequests:
    async def test_retry_after_is_honoured(self, faults: FaultyApi, namespace: str) -> None:
        clock = RecordingClock()
        async with Transport(clock) as transport:
            client = Client(transport, faults.access)
            faults.answer(429, times=2, which=is_write, headers={"Retry-After": "7"})
            await client.create(CONFIG_MAPS, config_map(namespace), manager="first")
        assert len(clock.waits_s) == 2
        assert all(wait_s >= 7.0 for wait_s in clock.waits_s)
        assert faults.count(is_write) == 3

    async def test_a_retry_after_beyond_the_timeout_fails_immediately(self, faults: FaultyApi, namespace: str) -> None:
        faults.answer(429, which=is_write, headers={"Retry-After": "3600"})
        error = await rejected(faults.client.create(CONFIG_MAPS, config_map(namespace), manager="first"))
        assert isinstance(error, ApiError)
        assert (error.kind, error.retry_after_s) == (Kind.EXHAUSTED, 3600.0)
        assert faults.count(is_write) == 1


class TestServerErrors:
    @pytest.mark.parametrize("status", [500, 502, 503, 504])
    async def test_a_retryable_request_is_retried(self, faults: FaultyApi, namespace: str, status: int) -> None:
        faults.answer(status, times=2, which=is_write)
        applied = await faults.client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert (applied["data"], faults.count(is_write)) == ({"k": "1"}, 3)

    async def test_a_create_is_not_retried(self, faults: FaultyApi, client: Client, namespace: str) -> None:
        faults.answer(500, which=is_write)
        await rejected(faults.client.create(CONFIG_MAPS, config_map(namespace), manager="first"))
        assert faults.count(is_write) == 1
        assert (await rejected(client.get(CONFIG_MAPS, "a", namespace))).kind is Kind.NOT_FOUND

    async def test_an_error_page_of_a_proxy_is_quoted(self, faults: FaultyApi, transport: Transport) -> None:
        client = Client(transport, faults.access, ONE_ATTEMPT)
        faults.answer(502, content=b"<html><title>Bad Gateway</title></html>")
        error = await rejected(client.send(Request("GET", "/api")))
        assert "in front of the API server: Bad Gateway" in str(error)


class TestLostResponses:
    async def test_an_apply_whose_response_is_lost_is_retried(self, faults: FaultyApi, namespace: str) -> None:
        faults.drop_response(which=is_write)
        applied = await faults.client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert (applied["data"], faults.count(is_write)) == ({"k": "1"}, 2)

    async def test_a_create_whose_response_is_lost_is_not_retried(
        self, faults: FaultyApi, client: Client, namespace: str
    ) -> None:
        faults.drop_response(which=is_write)
        error = await rejected(faults.client.create(CONFIG_MAPS, config_map(namespace), manager="first"))
        assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-connection-lost")
        assert faults.count(is_write) == 1
        await until(lambda: self._exists(client, namespace))

    async def _exists(self, client: Client, namespace: str) -> bool:
        return bool([each async for each in client.list(CONFIG_MAPS, namespace, fields="metadata.name=a")])

    async def test_a_dropped_keepalive_connection_is_replaced(self, faults: FaultyApi, namespace: str) -> None:
        await faults.client.apply(CONFIG_MAPS, config_map(namespace), manager="first")
        faults.cut()
        applied = await faults.client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert applied["data"] == {"k": "1"}


class TestUnavailableServer:
    async def test_the_circuit_opens_and_closes_again(self, faults: FaultyApi) -> None:
        clock = VirtualClock()
        breaker = BreakerPolicy(failures=3, backoff=Backoff(initial_s=2.0, max_s=3.0))
        async with Transport(clock) as transport:
            client = Client(transport, faults.access, Limits(attempts=1, breaker=breaker))
            faults.unavailable = True
            codes = [(await rejected(client.send(Request("GET", "/api")))).code for _ in range(3)]
            assert "circuit-open" not in codes
            faults.unavailable = False
            error = await rejected(client.send(Request("GET", "/api")))
            assert (error.kind, error.code) == (Kind.UNAVAILABLE, "circuit-open")
            await clock.advance(3.0)
            assert await client.send(Request("GET", "/api"))

    async def test_a_server_that_does_not_respond_times_out(self, faults: FaultyApi) -> None:
        await faults.client.send(Request("GET", "/api"))
        faults.stall()
        error = await rejected(faults.client.send(Request("GET", "/api", timeout_s=0.2)))
        assert (error.kind, error.code) == (Kind.DEADLINE, "kube-deadline")
        faults.resume()

    async def test_a_server_of_another_authority_is_not_trusted(self, api: ControlPlane, transport: Transport) -> None:
        client = Client(transport, Access(api.url, Authority("other").certificate, token=Secret("t")), ONE_ATTEMPT)
        error = await rejected(client.send(Request("GET", "/api")))
        assert (error.kind, error.code) == (Kind.UNAUTHENTICATED, "kube-tls-untrusted")


class TestStreams:
    async def watch(self, client: Client, namespace: str) -> Request:
        created = await client.create(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        query = {"watch": "1", "resourceVersion": created["metadata"]["resourceVersion"]}
        return Request("GET", CONFIG_MAPS.path(namespace), query)

    async def test_a_stream_lost_within_an_event_fails_without_a_partial_event(
        self, faults: FaultyApi, client: Client, namespace: str
    ) -> None:
        request = await self.watch(client, namespace)
        async with aclosing(faults.client.stream_lines(request)) as lines, asyncio.timeout(60):
            for number in range(2):
                await client.apply(CONFIG_MAPS, config_map(namespace, k=str(number)), manager="first", force=True)
                if number == 0:
                    event = msgspec.json.decode(await anext(lines))
                    assert event["object"]["data"] == {"k": "0"}
                    faults.truncate_event(after_bytes=20)
            error = await rejected(anext(lines))
        assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-connection-lost")

    async def test_reading_an_idle_stream_can_be_cancelled(
        self, faults: FaultyApi, client: Client, namespace: str
    ) -> None:
        request = await self.watch(client, namespace)
        async with aclosing(faults.client.stream_lines(request)) as lines:
            first = asyncio.create_task(anext(lines))
            await until(lambda: asyncio.sleep(0, faults.count(lambda request: request.is_watch)))
            faults.blackhole()
            await client.apply(CONFIG_MAPS, config_map(namespace, k="2"), manager="first", force=True)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first


async def test_a_path_prefix_of_the_server_is_kept(api: ControlPlane, transport: Transport, namespace: str) -> None:
    async with FaultyApi(api, transport, "/k8s/clusters/c-1") as faults:
        assert faults.url.endswith("/k8s/clusters/c-1")
        await faults.client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert [each["data"] async for each in faults.client.list(CONFIG_MAPS, namespace)] == [{"k": "1"}]
        assert (await faults.client.discovery.find("apps", "Deployment")).plural == "deployments"
