"""Fixtures for tests of the watches of a target cluster."""

import pytest

from governor.kube.client import Client
from tests.contract.reconciler.watch.bed import TargetBed


@pytest.fixture
def target(client: Client, namespace: str) -> TargetBed:
    return TargetBed(client, namespace)
