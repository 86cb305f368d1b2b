"""Helm, and namespaces that admit only restricted pods."""

from contextlib import suppress

import pytest

from testbed.kube.control_plane import ControlPlane
from tests.contract.charts.bed import Helm
from toolchain.errors import TestbedError

PLACES = ("fleet", "orders", "payments")


@pytest.fixture(scope="package")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture
async def namespace(control_plane: ControlPlane) -> str:
    """The name of a new namespace that admits only pods which are restricted."""
    metadata = {"generateName": "chart-", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    created = await control_plane.ask("POST", "/api/v1/namespaces", {"metadata": metadata})
    return str(created["metadata"]["name"])


@pytest.fixture
async def places(control_plane: ControlPlane) -> None:
    """Create the namespaces for which the charts are rendered; nothing is created in them."""
    for name in PLACES:
        with suppress(TestbedError):  # an earlier test has created it
            await control_plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
