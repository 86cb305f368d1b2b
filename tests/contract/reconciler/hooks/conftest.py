"""Fixtures for tests of hooks."""

import pytest

from governor.kube.client import Limits, Transport
from governor.process.flowcontrol.limiter import Rate
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.bed import admin_of
from tests.contract.reconciler.hooks.bed import HookBed


@pytest.fixture
def client(control_plane: ControlPlane, transport: Transport) -> RecordingClient:
    """An administrator's client of the shared server; the kinds of the reconciler are not needed."""
    return RecordingClient(transport, admin_of(control_plane), Limits(rate=Rate(per_s=10_000.0, burst=10_000)))


@pytest.fixture
def bed(client: RecordingClient, namespace: str) -> HookBed:
    """The hooks of a module in a namespace of its own."""
    return HookBed(client, namespace)
