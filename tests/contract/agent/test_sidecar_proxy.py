"""Reading sidecars through the pod proxy of a real API server.

The API server connects to no loopback address, so the sidecar has an address of this machine.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from governor.agent.platforms.kubernetes.proof import sidecar_reader
from governor.agent.platforms.kubernetes.proof.sidecar_reader import PROXY_LIMITS, Route, SidecarReader, open_session
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource
from testbed.daprd import Sidecar
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.pytest_plugin import StartDaprd
from testbed.sidecar_replay import METRICS, PUBLIC, SidecarReplay, machine_address, record
from tests.contract.agent.bed import MANAGER, create, observing, write_status
from tests.contract.kube.bed import FaultyApi, account_of
from tests.unit.agent.platforms.kubernetes.manifests import args, daprd, pod, status

ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
APP_ID = "orders"
NOWHERE = "198.51.100.1"
"""No machine has this address, which is for documentation."""
REFUSED = "::1"
"""The replayed sidecar listens on IPv4 addresses only."""
UNHEALTHY = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
REQUESTS = 3
NewReader: TypeAlias = Callable[[Route], SidecarReader]


def is_proxied(request: ApiRequest) -> bool:
    return "/proxy/" in request.path


def with_ready(pod: Pod, *, ready: bool) -> Pod:
    assert pod.sidecar
    return msgspec.structs.replace(pod, sidecar=msgspec.structs.replace(pod.sidecar, ready=ready))


def at(pod: Pod, ip: str) -> Pod:
    return msgspec.structs.replace(pod, ip=ip)


@pytest.fixture
async def replay(start_daprd: StartDaprd, tmp_path: Path) -> AsyncIterator[SidecarReplay]:
    """A server that replays the responses of a real sidecar."""
    resources = tmp_path / "resources"
    resources.mkdir()
    running = await start_daprd(Sidecar(APP_ID, resources))
    async with SidecarReplay(await record(running)) as replay:
        yield replay


@pytest.fixture
async def orders(client: Client, namespace: str, replay: SidecarReplay) -> Pod:
    """The pod of the replayed sidecar, as observed."""
    arguments = [*args(APP_ID), "--dapr-public-port", str(replay.port), "--metrics-port", str(replay.port)]
    await create(client, namespace, pod("orders-0", sidecar=daprd(arguments)))
    await write_status(client, namespace, "Pod", "orders-0", {**status(), "podIP": machine_address()})
    async with observing(client, namespace) as watched:
        return watched.workloads["Pod/orders-0"].pods[0]


@pytest.fixture
async def new_reader(
    transport: Transport, faults: FaultyApi, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NewReader]:
    """Creates readers whose requests to the API server are recorded."""
    monkeypatch.setattr(sidecar_reader, "_CONNECT_TIMEOUT_S", 0.2)
    async with open_session() as session:
        yield lambda route: SidecarReader(session, Client(transport, faults.access, PROXY_LIMITS), route)


async def test_a_sidecar_is_read_through_the_api_server(
    new_reader: NewReader, orders: Pod, replay: SidecarReplay, faults: FaultyApi
) -> None:
    direct = await new_reader(Route.AUTO).read(orders)
    proxied = await new_reader(Route.PROXY).read(orders)
    assert proxied.status
    assert (proxied.route, proxied.reason, proxied.status.healthy) == (Route.PROXY, "", True)
    assert proxied.status.counters is not None
    assert (direct.status, direct.route) == (proxied.status, Route.DIRECT)
    assert replay.requests == {(orders.ip, path): 2 for path in (METRICS, *PUBLIC)}
    assert faults.count() == REQUESTS


async def test_errors_of_a_sidecar_are_neither_retried_nor_taken_for_the_api_servers(
    new_reader: NewReader, orders: Pod, replay: SidecarReplay, faults: FaultyApi
) -> None:
    reader = new_reader(Route.PROXY)
    replay.responses[PUBLIC[0]] = UNHEALTHY
    readings = [await reader.read(orders) for _ in range(10)]
    assert all(each.status and not each.status.healthy for each in readings)
    replay.responses[PUBLIC[1]] = UNHEALTHY
    failed = await reader.read(orders)
    assert failed.status is None
    assert faults.count() == 11 * REQUESTS


async def test_a_pod_that_cannot_be_reached_is_read_through_the_api_server_from_then_on(
    new_reader: NewReader, orders: Pod, replay: SidecarReplay
) -> None:
    reader = new_reader(Route.AUTO)
    first = await reader.read(at(orders, NOWHERE))
    assert (first.route, bool(first.status)) == (Route.PROXY, True)
    again = await reader.read(orders)
    assert (again.route, again.status) == (Route.PROXY, first.status)
    others = await reader.read(msgspec.structs.replace(orders, uid="another"))
    assert others.route is Route.DIRECT

    never = await new_reader(Route.DIRECT).read(at(orders, NOWHERE))
    assert (never.route, never.status) == (Route.DIRECT, None)
    assert f"cannot connect to http://{NOWHERE}:{replay.port}" in never.reason


async def test_a_refused_connection_is_the_networks_only_if_kubernetes_reaches_the_sidecar(
    new_reader: NewReader, orders: Pod, faults: FaultyApi
) -> None:
    reader = new_reader(Route.AUTO)
    starting = await reader.read(with_ready(at(orders, REFUSED), ready=False))
    assert (starting.route, starting.status) == (Route.DIRECT, None)
    assert faults.count() == 0
    serving = await reader.read(with_ready(at(orders, REFUSED), ready=True))
    assert (serving.route, bool(serving.status)) == (Route.PROXY, True)


async def test_a_pod_that_is_gone_is_no_error(new_reader: NewReader, orders: Pod, faults: FaultyApi) -> None:
    reader = new_reader(Route.AUTO)
    gone = await reader.read(at(msgspec.structs.replace(orders, name="gone", uid="gone"), NOWHERE))
    assert (gone.route, gone.status) == (Route.DIRECT, None)
    proxied = await new_reader(Route.PROXY).read(msgspec.structs.replace(orders, name="gone"))
    assert (proxied.route, proxied.status) == (Route.PROXY, None)
    assert 'pods "gone" not found' in proxied.reason
    assert faults.count(is_proxied) == faults.count()


async def test_without_permission_the_reason_says_so(
    api: ControlPlane, client: Client, transport: Transport, orders: Pod
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    metadata = {"name": "agent", "namespace": orders.namespace}
    await client.create(ACCOUNTS, {**account, "metadata": metadata}, manager=MANAGER)
    access = account_of(api, await api.request_token(orders.namespace, "agent"))
    async with open_session() as session:
        reading = await SidecarReader(session, Client(transport, access, PROXY_LIMITS), Route.PROXY).read(orders)
    assert reading.status is None
    assert 'cannot get resource "pods/proxy"' in reading.reason
