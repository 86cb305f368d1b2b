"""The shared API server with Dapr's definitions, and the agent of one runtime."""

from collections.abc import AsyncIterator

import pytest

from governor.kube.client import Client, Transport
from testbed.kube.control_plane import ControlPlane
from tests.contract.agent.apply.bed import NAMESPACES, Bed
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.reflector.bed import UNLIMITED


@pytest.fixture
def api(control_plane: ControlPlane, dapr_definitions: None) -> ControlPlane:
    """The shared server with Dapr's definitions: etcd and kube-apiserver, no controllers."""
    return control_plane


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    """The connections of one test."""
    async with Transport() as transport:
        yield transport


@pytest.fixture
def client(api: ControlPlane, transport: Transport) -> RecordingClient:
    """An administrator's client of the shared server."""
    return RecordingClient(transport, admin_of(api), UNLIMITED)


@pytest.fixture
async def faults(api: ControlPlane, transport: Transport) -> AsyncIterator[FaultyApi]:
    """Fault-injecting proxy in front of the shared server."""
    async with FaultyApi(api, transport) as faults:
        yield faults


@pytest.fixture
async def namespace(client: Client) -> str:
    """The name of a new namespace; it is not deleted, because no controller runs that would finish the deletion."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "team-", "name": ""}}
    created = await client.create(NAMESPACES, manifest, manager="tests")
    return str(created["metadata"]["name"])


@pytest.fixture
def bed(client: RecordingClient, namespace: str) -> Bed:
    """The agent of one runtime."""
    return Bed(client, namespace)
