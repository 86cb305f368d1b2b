"""Fixtures for tests of whole modules: a hub whose reconciler renders charts and works without pauses."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from governor.kube.client import Client, Transport
from governor.process.flowcontrol.backoff import Backoff
from governor.reconciler.controllers import cluster_states, clusters, installations, module_instances
from testbed.kube.control_plane import ControlPlane
from tests.contract.reconciler.bed import CountingRenderer
from tests.contract.reconciler.steps.bed import ModuleBed


@pytest.fixture
async def idle(
    control_plane: ControlPlane,
    client: Client,
    transport: Transport,
    namespace: str,
    tmp_path: Path,
    renderer: CountingRenderer,
    monkeypatch: pytest.MonkeyPatch,
) -> ModuleBed:
    """A hub without a reconciler, for tests that start it themselves."""
    for controller in (clusters, cluster_states):
        monkeypatch.setattr(controller, "INTERVAL_S", 0.01)
    monkeypatch.setattr(clusters, "RECHECK_S", 0.2)
    monkeypatch.setattr(installations, "LASTING_S", 0.01)
    monkeypatch.setattr(module_instances, "RECHECK_S", 0.2)
    monkeypatch.setattr(module_instances, "BACKOFF", Backoff(initial_s=0.1, max_s=0.5))
    bed = ModuleBed(control_plane, client, transport, namespace, tmp_path, renderer)
    await bed.prepare()
    return bed


@pytest.fixture
async def bed(idle: ModuleBed) -> AsyncIterator[ModuleBed]:
    """A hub with a running reconciler."""
    await idle.start()
    try:
        yield idle
    finally:
        await idle.stop()
