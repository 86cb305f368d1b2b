"""Fixtures for tests of ``governor.kube``, which reach a server through these alone.

``api`` and what stands on it are shared by the tests of one process: each works in its own ``namespace`` and names
what belongs to none after it.
"""

from collections.abc import AsyncIterator

import pytest

from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource
from testbed.kube.control_plane import ControlPlane
from testbed.pytest_plugin import StartControlPlane
from tests.contract.kube.bed import FaultyApi, admin_of

NAMESPACES = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)


@pytest.fixture
def api(control_plane: ControlPlane) -> ControlPlane:
    """The shared server: etcd and kube-apiserver, no controllers."""
    return control_plane


@pytest.fixture
def start_api(start_control_plane: StartControlPlane) -> StartControlPlane:
    """Starts a server of the test's own, to be broken or with controllers."""
    return start_control_plane


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    """The connections of one test."""
    async with Transport() as transport:
        yield transport


@pytest.fixture
def client(api: ControlPlane, transport: Transport) -> Client:
    """The client of the shared server's administrator."""
    return Client(transport, admin_of(api))


@pytest.fixture
async def faults(api: ControlPlane, transport: Transport) -> AsyncIterator[FaultyApi]:
    """The shared server through a proxy that breaks what it is told to; ``faults.client`` is the administrator's."""
    async with FaultyApi(api, transport) as faults:
        yield faults


@pytest.fixture
async def namespace(client: Client) -> str:
    """The name of a new namespace; it is left behind, for without controllers none would end."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-", "name": ""}}
    created = await client.create(NAMESPACES, manifest, manager="tests")
    return str(created["metadata"]["name"])
