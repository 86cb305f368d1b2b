"""A control plane with controllers, Dapr's definitions and an injector, which the tests of one process share."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from governor.agent.platforms.kubernetes.workloads.observer import PODS
from governor.agent.state.file_blobs import FileBlobs
from governor.kube.client import Transport
from governor.kube.objects import ApiResource
from testbed.daprd import Daprd, Sidecar
from testbed.kube.control_plane import ControlPlane, Options
from testbed.kube.webhooks import Webhook
from testbed.sidecar_replay import SidecarReplay, record
from testbed.waiting import until
from tests.contract.agent.apply.bed import install_dapr
from tests.contract.agent.platform.bed import (
    DAPR_NAMESPACE,
    Bed,
    Injector,
    Kubelet,
    create_namespace,
    install_services,
    until_usable,
)
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.bed import admin_of
from tests.contract.kube.reflector.bed import UNLIMITED, running

WEBHOOKS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def recorded(daprd_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """The responses of a real sidecar without resources."""
    resources = tmp_path_factory.mktemp("resources")
    daprd = Daprd(daprd_binary, tmp_path_factory.mktemp("recorded"), Sidecar("app", resources))
    await daprd.start()
    try:
        return await record(daprd)
    finally:
        await daprd.stop()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def replay() -> AsyncIterator[SidecarReplay]:
    """The server of all replayed sidecars."""
    async with SidecarReplay({}) as replay:
        yield replay


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def injector(replay: SidecarReplay) -> Injector:
    """The injector of the shared control plane."""
    return Injector(replay.port)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def plane(
    kubernetes_binaries: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    injector: Injector,
    replay: SidecarReplay,
) -> AsyncIterator[ControlPlane]:
    """A control plane with controllers and Dapr's definitions."""
    directory = tmp_path_factory.mktemp("platform")
    async with ControlPlane(kubernetes_binaries, directory, Options(controllers=True)) as plane:
        await install_dapr(plane)
        async with Webhook(plane.authority, lambda _: "", injector.patch) as webhook, Transport() as transport:
            client = RecordingClient(transport, admin_of(plane), UNLIMITED)
            await _register(client, webhook)
            await create_namespace(client, DAPR_NAMESPACE)
            kubelet = Kubelet(client, DAPR_NAMESPACE, replay, {})
            async with running(kubelet.run()):
                await install_services(client, DAPR_NAMESPACE)
            yield plane


async def _register(client: RecordingClient, webhook: Webhook) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    hook = {
        "name": "injector.example.com",
        "clientConfig": webhook.client_config,
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    manifest = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "injector"},
        "webhooks": [hook],
    }
    await client.create(WEBHOOKS, manifest, manager="tests")
    await until_usable(client, "default")
    pod = {"containers": [{"name": "app", "image": "app"}]}
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "default"}, "spec": pod}

    async def is_active() -> bool:
        await client.create(PODS, probe, manager="tests", dry_run=True)
        return bool(webhook.requests)

    await until(is_active)


@pytest_asyncio.fixture(loop_scope="session")
async def transport(plane: ControlPlane, server_logs: list[Path]) -> AsyncIterator[Transport]:
    """The connections of one test."""
    server_logs.extend(server.log for server in plane.servers)
    async with Transport() as transport:
        yield transport


@pytest_asyncio.fixture(loop_scope="session")
async def bed(
    plane: ControlPlane,
    transport: Transport,
    replay: SidecarReplay,
    recorded: Mapping[str, bytes],
    injector: Injector,
) -> AsyncIterator[Bed]:
    """A namespace with a kubelet."""
    client = RecordingClient(transport, admin_of(plane), UNLIMITED)
    namespace = await create_namespace(client)
    kubelet = Kubelet(client, namespace, replay, recorded)
    async with running(kubelet.run()):
        yield Bed(lambda: RecordingClient(transport, admin_of(plane), UNLIMITED), namespace, kubelet, injector)


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    """The stored state of the agent."""
    return FileBlobs(tmp_path)
