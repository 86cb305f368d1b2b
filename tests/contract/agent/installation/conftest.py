"""A control plane with controllers that records the requests of ServiceAccounts."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from governor.kube.client import Transport
from governor.kube.objects import ApiResource
from testbed.kube.control_plane import ControlPlane, Options
from testbed.kube.webhooks import Webhook
from testbed.sidecar_replay import SidecarReplay
from tests.contract.agent.apply.bed import install_dapr
from tests.contract.agent.installation.bed import AgentBed, Need, NewWorld, Release, World, audit_flags
from tests.contract.agent.platform.bed import (
    DAPR_NAMESPACE,
    Bed,
    Injector,
    Kubelet,
    create_namespace,
    install_services,
)
from tests.contract.agent.platform.conftest import _register, recorded, replay
from tests.contract.agent.visibility.bed import install_definition
from tests.contract.charts.bed import Helm
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.bed import admin_of
from tests.contract.kube.reflector.bed import UNLIMITED, running
from tests.integration.server.bed import running as running_server

NODES = ApiResource("", "v1", "Node", "nodes", namespaced=False)

__all__ = ["recorded", "replay"]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def injector(replay: SidecarReplay) -> Injector:
    return Injector(replay.port)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def plane(
    kubernetes_binaries: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    injector: Injector,
    replay: SidecarReplay,
) -> AsyncIterator[ControlPlane]:
    directory = tmp_path_factory.mktemp("permissions")
    options = Options(controllers=True, api_flags=audit_flags(directory))
    async with ControlPlane(kubernetes_binaries, directory, options) as plane:
        await install_dapr(plane)
        async with Webhook(plane.authority, lambda _: "", injector.patch) as webhook, Transport() as transport:
            client = RecordingClient(transport, admin_of(plane), UNLIMITED)
            await install_definition(client)
            await _register(client, webhook)
            # A DaemonSet has a pod for each node; no kubelet is needed for that.
            await client.create(
                NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}, manager="tests"
            )
            await create_namespace(client, DAPR_NAMESPACE)
            kubelet = Kubelet(client, DAPR_NAMESPACE, replay, {})
            async with running(kubelet.run()):
                await install_services(client, DAPR_NAMESPACE)
            yield plane


@pytest_asyncio.fixture(loop_scope="session")
async def transport(plane: ControlPlane, server_logs: list[Path]) -> AsyncIterator[Transport]:
    server_logs.extend(server.log for server in plane.servers)
    async with Transport() as transport:
        yield transport


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture
def admin(plane: ControlPlane, transport: Transport) -> RecordingClient:
    """An administrator's client."""
    return RecordingClient(transport, admin_of(plane), UNLIMITED)


@pytest_asyncio.fixture(loop_scope="session")
async def new_world(
    plane: ControlPlane,
    admin: RecordingClient,
    helm: Helm,
    replay: SidecarReplay,
    recorded: Mapping[str, bytes],
    injector: Injector,
    tmp_path: Path,
) -> NewWorld:
    """Returns a world with new namespaces, without some of the agent's permissions."""
    numbers = count()

    @asynccontextmanager
    async def world(*without: Need) -> AsyncIterator[World]:
        state, *managed = [await create_namespace(admin) for _ in range(3)]
        release = Release(plane, helm, state, tuple(managed))
        await release.install(*without)
        kubelet = Kubelet(admin, managed[0], replay, recorded)
        cluster = Bed(lambda: admin, managed[0], kubelet, injector)
        directory = tmp_path / str(next(numbers))
        async with running(kubelet.run()), running_server(directory / "server") as server:
            yield World(AgentBed(server, release, directory), cluster, release)

    return world
