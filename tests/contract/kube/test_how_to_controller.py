"""The example program of docs/how-to/write-a-controller.md works as that page describes."""

import asyncio
import importlib.util
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from governor.kube.client import Client, Transport
from governor.kube.lease import LEASES
from governor.kube.objects import Object
from governor.process.clock import SystemClock
from governor.process.telemetry.instruments import Registry
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEPLOYMENTS, config_map, exists
from tests.contract.kube.bed import admin_of

HOW_TO = Path(__file__).parents[3] / "docs/how-to"
WITHIN_S = 120.0
READY = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("pages_example", HOW_TO / "examples/pages.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "RECHECK_S", 0.05)
    return module


def page(name: str, namespace: str, **data: str) -> Object:
    manifest = config_map(name, namespace, **data)
    manifest["metadata"]["labels"] = {"example.dev/page": "yes"}
    return manifest


async def test_the_example_applies_updates_and_prunes(
    api: ControlPlane, client: Client, transport: Transport, namespace: str, example: ModuleType
) -> None:
    registry = Registry()
    access = msgspec.structs.replace(admin_of(api), namespace=namespace)

    def successes() -> float:
        return registry.value("controller_runtime_reconcile_total", {"controller": "pages", "result": "success"}) or 0.0

    async def succeeded() -> bool:
        return successes() == 1

    async def served(replicas: int) -> bool:
        found = await exists(client, DEPLOYMENTS, "home", namespace)
        return found and (await client.get(DEPLOYMENTS, "home", namespace))["spec"]["replicas"] == replicas

    async def gone() -> bool:
        return not await exists(client, DEPLOYMENTS, "home", namespace, terminating=True)

    async def while_running(work: Callable[[], Awaitable[object]], registry: Registry) -> None:
        running = asyncio.create_task(example.Pages(transport, access, registry, SystemClock()).run())
        try:
            await work()
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def serve_and_change() -> None:
        await client.create(CONFIG_MAPS, page("home", namespace, replicas="2"), manager="user")
        await until(lambda: served(2), within_s=WITHIN_S)
        assert successes() == 0
        await client.patch(
            DEPLOYMENTS, "home", namespace, {"status": READY}, manager="deployments", subresource="status"
        )
        await until(succeeded, within_s=WITHIN_S)
        await client.patch(CONFIG_MAPS, "home", namespace, {"data": {"replicas": "3"}}, manager="user")
        await until(lambda: served(3), within_s=WITHIN_S)

    await while_running(serve_and_change, registry)
    lease = await client.get(LEASES, "pages", namespace)
    assert not lease["spec"].get("holderIdentity")
    await client.delete(CONFIG_MAPS, "home", namespace)
    await while_running(lambda: until(gone, within_s=WITHIN_S), Registry())


def test_the_page_lists_the_parts_that_the_program_uses() -> None:
    text = (HOW_TO / "write-a-controller.md").read_text()
    program = (HOW_TO / "examples/pages.py").read_text()
    named = re.findall(r"^\d\. \*\*(\w+)\*\*", text, re.MULTILINE)
    assert named == ["View", "Reflector", "Reconciler", "ApplySet", "compute_readiness", "LeaderElector"]
    assert all(name in program for name in named)
