"""An API server that all contract tests of one process share.

Each test uses names of its own and neither stops, pauses nor reconfigures the server, which stops with the last
contract test: an idle API server takes a tenth of a core.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from testbed.kube.control_plane import ControlPlane


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def _shared_control_plane(
    kubernetes_binaries: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ControlPlane]:
    async with ControlPlane(kubernetes_binaries, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def control_plane(_shared_control_plane: ControlPlane, server_logs: list[Path]) -> ControlPlane:
    """Return an etcd and kube-apiserver, shared."""
    server_logs.extend(server.log for server in _shared_control_plane.servers)
    return _shared_control_plane
