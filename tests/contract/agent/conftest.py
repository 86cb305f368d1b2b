"""Fixtures for tests of the agent on a real API server: the same as for ``governor.kube``, and Dapr's definitions."""

import pytest_asyncio

from testbed.kube.control_plane import ControlPlane
from tests.contract.agent.apply.bed import install_dapr
from tests.contract.kube.conftest import api, client, faults, namespace, transport

__all__ = ["api", "client", "faults", "namespace", "transport"]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def dapr_definitions(_shared_control_plane: ControlPlane) -> None:
    """Dapr's CustomResourceDefinitions on the API server that all contract tests share."""
    await install_dapr(_shared_control_plane)
