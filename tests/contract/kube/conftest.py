"""Fixtures for tests of ``governor.kube``.

The tests of one process share ``api``: each works in its own ``namespace`` and derives the names of cluster-scoped
objects from it.
"""

from collections.abc import AsyncIterator

import pytest

from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.bed import FaultyApi, admin_of

NAMESPACES = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)


@pytest.fixture
def api(control_plane: ControlPlane) -> ControlPlane:
    """The shared server: etcd and kube-apiserver, no controllers."""
    return control_plane


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    """The connections of one test."""
    async with Transport() as transport:
        yield transport


@pytest.fixture
def client(api: ControlPlane, transport: Transport) -> Client:
    """An administrator's client of the shared server."""
    return Client(transport, admin_of(api))


@pytest.fixture
async def faults(api: ControlPlane, transport: Transport) -> AsyncIterator[FaultyApi]:
    """Fault-injecting proxy in front of the shared server; ``faults.client`` is an administrator's."""
    async with FaultyApi(api, transport) as faults:
        yield faults


@pytest.fixture
async def namespace(client: Client) -> str:
    """The name of a new namespace; it is not deleted, because no controller runs that would finish the deletion."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-", "name": ""}}
    created = await client.create(NAMESPACES, manifest, manager="tests")
    return str(created["metadata"]["name"])
