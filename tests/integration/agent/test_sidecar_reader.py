"""Reading sidecars in pods by their address: real ones, and many that replay the responses of a real one."""

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml

from governor.agent.platforms.kubernetes.proof import sidecar_reader
from governor.agent.platforms.kubernetes.proof.sidecar_reader import (
    CONCURRENCY,
    PROXY_LIMITS,
    Route,
    SidecarReader,
    open_session,
)
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod
from governor.domain.reports import WorkloadRef
from governor.kube.client import Client, Transport
from governor.kube.config.access import Access
from testbed.daprd import Daprd, Sidecar
from testbed.pytest_plugin import StartDaprd, StartServer
from testbed.sidecar_replay import METRICS, PUBLIC, SidecarReplay, address, machine_address, record
from tests.integration.agent.bed import component

SIDECARS = 1_000
APP_ID = "orders"
AS_INJECTED = (
    "--dapr-listen-addresses=[::1],127.0.0.1",
    "--dapr-public-listen-address=",
    "--metrics-listen-address=0.0.0.0",
)
"""Where a sidecar in a pod listens: the injector sets only the first of these flags; the others are defaults."""


def pod_at(ip: str, public: int, metrics: int, name: str = "a", *, ready: bool = True) -> Pod:
    return Pod(
        namespace="shop",
        name=name,
        uid=f"uid-{name}",
        created=datetime(2026, 8, 1, tzinfo=UTC),
        app_id=APP_ID,
        owner=WorkloadRef("shop", "Pod", name),
        ip=ip,
        sidecar=Container("daprd", id="1", ready=ready, public_port=public, metrics_port=metrics),
    )


def pod_of(daprd: Daprd) -> Pod:
    return pod_at("127.0.0.1", daprd.ports["public"], daprd.ports["metrics"])


def unused_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@pytest.fixture
async def unreachable_api() -> AsyncIterator[Client]:
    """A client of an API server that does not run."""
    async with Transport() as transport:
        yield Client(transport, Access(f"http://127.0.0.1:{unused_port()}"), PROXY_LIMITS)


@pytest.fixture
async def reader(unreachable_api: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SidecarReader]:
    """A reader that waits longer than a busy machine needs, without an API server."""
    for name in ("_CONNECT_TIMEOUT_S", "_TIMEOUT_S"):
        monkeypatch.setattr(sidecar_reader, name, 60.0)
    async with open_session() as session:
        yield SidecarReader(session, unreachable_api)


@pytest.fixture
def resources(tmp_path: Path) -> Path:
    """A resources directory with one component."""
    directory = tmp_path / "resources"
    directory.mkdir()
    (directory / "store.yaml").write_text(yaml.safe_dump(component("store", "state.in-memory")))
    return directory


@pytest.fixture
async def responses(start_daprd: StartDaprd, resources: Path) -> dict[str, bytes]:
    """The responses of a real sidecar."""
    daprd = await start_daprd(Sidecar(APP_ID, resources))
    recorded = await record(daprd)
    await daprd.stop()
    return recorded


class DaprdWithToken(Daprd):
    """A sidecar whose API needs a token."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "DAPR_API_TOKEN": "secret"}


async def test_a_real_sidecar_is_read_by_its_address(
    reader: SidecarReader, start_daprd: StartDaprd, resources: Path
) -> None:
    pod = pod_of(await start_daprd(Sidecar(APP_ID, resources)))
    reading = await reader.read(pod)
    assert reading.status
    assert (reading.route, reading.reason, reading.status.healthy) == (Route.DIRECT, "", True)
    assert [each.name for each in reading.status.metadata.components] == ["store"]
    assert reading.status.counters
    assert reading.status.counters.initialised == {"state.in-memory": 1}

    other = await reader.read(msgspec.structs.replace(pod, app_id="stock"))
    assert (other.status, "'orders' instead of 'stock'" in other.reason) == (None, True)


async def test_metrics_that_are_disabled_leave_no_counters(
    reader: SidecarReader, start_daprd: StartDaprd, resources: Path
) -> None:
    daprd = await start_daprd(Sidecar(APP_ID, resources, ("--enable-metrics=false",)))
    by_configuration = await reader.read(pod_of(daprd))
    assert by_configuration.status
    assert by_configuration.status.counters is None
    assert "cannot connect" in by_configuration.reason
    by_annotation = await reader.read(pod_at("127.0.0.1", daprd.ports["public"], 0))
    assert by_annotation.status
    assert by_annotation.status.metadata.components == by_configuration.status.metadata.components
    assert (by_annotation.status.counters, by_annotation.reason) == (None, "its metrics are disabled")


@pytest.mark.parametrize("binary", ["daprd_binary", "daprd_1_16_binary"])
async def test_the_injectors_listen_addresses_and_a_token_do_not_matter(
    reader: SidecarReader,
    request: pytest.FixtureRequest,
    start_server: StartServer,
    resources: Path,
    tmp_path: Path,
    binary: str,
) -> None:
    sidecar = Sidecar(APP_ID, resources, AS_INJECTED)
    daprd = await start_server(DaprdWithToken(request.getfixturevalue(binary), tmp_path / "daprd", sidecar))
    reading = await reader.read(pod_at(machine_address(), daprd.ports["public"], daprd.ports["metrics"]))
    assert reading.status
    assert reading.status.healthy
    assert reading.status.counters
    api = await reader.read(pod_at(machine_address(), daprd.ports["http"], 0))
    assert "cannot connect" in api.reason, "the API listens on loopback"


async def test_a_thousand_sidecars_take_three_requests_each(reader: SidecarReader, responses: dict[str, bytes]) -> None:
    async with SidecarReplay(responses) as replay:
        pods = [pod_at(address(number), replay.port, replay.port, f"pod-{number}") for number in range(SIDECARS)]
        readings = await reader.read_all(pods)
        assert readings.keys() == {pod.uid for pod in pods}
        statuses = [reading.status for reading in readings.values()]
        assert all(status and status.healthy and status.counters for status in statuses)
        assert replay.requests == {(pod.ip, path): 1 for pod in pods for path in (METRICS, *PUBLIC)}
        assert replay.most_open <= 2 * CONCURRENCY


async def test_a_silent_sidecar_does_not_hold_the_others_back(
    reader: SidecarReader, responses: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SidecarReplay(responses) as replay:
        silent, *others = (pod_at(address(each), replay.port, replay.port, f"pod-{each}") for each in range(20))
        replay.silent = {silent.ip}
        waiting = asyncio.create_task(reader.read(silent))
        assert all(reading.status for reading in (await reader.read_all(others)).values())
        waiting.cancel()
        monkeypatch.setattr(sidecar_reader, "_TIMEOUT_S", 0.1)
        assert (await reader.read(silent)).reason == "it does not respond like a sidecar"


@pytest.mark.parametrize(
    ("path", "response"),
    [
        (PUBLIC[0], b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        (PUBLIC[1], b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"),
        (PUBLIC[1], b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
        (PUBLIC[1], b""),
        (PUBLIC[1], b"not http\r\n\r\n"),
        (METRICS, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe"),
    ],
)
async def test_what_is_no_sidecar_has_no_status(
    reader: SidecarReader, responses: dict[str, bytes], path: str, response: bytes
) -> None:
    async with SidecarReplay({**responses, path: response}) as replay:
        reading = await reader.read(pod_at(address(0), replay.port, replay.port))
        assert reading.status is None
        assert reading.reason


async def test_a_pod_that_is_gone_is_no_error(reader: SidecarReader) -> None:
    gone = await reader.read(pod_at("127.0.0.1", unused_port(), unused_port(), ready=False))
    assert (gone.status, gone.route) == (None, Route.DIRECT)
    assert "cannot connect" in gone.reason
    unscheduled = await reader.read(pod_at("", 3501, 9090))
    assert (unscheduled.status, unscheduled.reason) == (None, "the pod has no address")
    without = await reader.read(msgspec.structs.replace(pod_at("127.0.0.1", 3501, 9090), sidecar=None))
    assert (without.status, without.reason) == (None, "the pod has no sidecar with a public port")


async def test_an_endless_response_is_cut_off(
    reader: SidecarReader, responses: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_reader, "_MAX_BODY_BYTES", 10)
    async with SidecarReplay(responses) as replay:
        reading = await reader.read(pod_at(address(0), replay.port, replay.port))
        assert "more than 10 bytes" in reading.reason
