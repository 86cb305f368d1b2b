"""The API server, its client, faults and namespaces, as in the tests of ``governor.kube``; and the homes."""

from pathlib import Path

import pytest

from governor.kube.client import Client
from tests.contract.agent.state.bed import Home
from tests.contract.kube.conftest import api, client, faults, namespace, transport

__all__ = ["api", "client", "faults", "namespace", "transport"]


@pytest.fixture(params=["files", "secrets"])
def home(request: pytest.FixtureRequest, client: Client, namespace: str, tmp_path: Path) -> Home:
    """A home without any value."""
    return Home(request.param, client, namespace, tmp_path)
