"""The example programs of docs/how-to/write-a-controller.md work as that page describes."""

import asyncio
import os
import re
import sys

import aiohttp
import pytest

from governor.kube.client import Client, Transport
from governor.kube.lease import LEASES
from governor.kube.objects import Object
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEPLOYMENTS, config_map, exists
from tests.contract.kube.bed import admin_of
from tests.contract.kube.controller.bed import (
    HOW_TO,
    SITES,
    WITHIN_S,
    event_reasons,
    get_or_none,
    install_sites,
    load_example,
    operating,
    set_ready,
    site,
    until_true,
)


def page(name: str, namespace: str, **data: str) -> Object:
    manifest = config_map(name, namespace, **data)
    manifest["metadata"]["labels"] = {"example.dev/page": "yes"}
    return manifest


async def test_pages_applies_heals_updates_and_deletes(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    example = load_example("pages")

    async def served(replicas: int) -> bool:
        found = await exists(client, DEPLOYMENTS, "home", namespace)
        return found and (await client.get(DEPLOYMENTS, "home", namespace))["spec"]["replicas"] == replicas

    async def gone() -> bool:
        return not await exists(client, DEPLOYMENTS, "home", namespace, terminating=True)

    async with operating(transport, admin_of(api), namespace, example.PAGES, name="pages") as running:
        await client.create(CONFIG_MAPS, page("home", namespace, replicas="2"), manager="user")
        await until(lambda: served(2), within_s=WITHIN_S)
        assert running.results("pages", "success") == 0
        await set_ready(client, "home", namespace)
        await until_true(lambda: running.results("pages", "success") > 0)

        await client.patch(DEPLOYMENTS, "home", namespace, {"spec": {"replicas": 7}}, manager="user")
        await until(lambda: served(2), within_s=WITHIN_S)
        await client.delete(DEPLOYMENTS, "home", namespace)
        await until(lambda: served(2), within_s=WITHIN_S)
        await client.patch(CONFIG_MAPS, "home", namespace, {"data": {"replicas": "3"}}, manager="user")
        await until(lambda: served(3), within_s=WITHIN_S)
    lease = await client.get(LEASES, "pages", namespace)
    assert not lease["spec"].get("holderIdentity")

    await client.delete(CONFIG_MAPS, "home", namespace)
    async with operating(transport, admin_of(api), namespace, example.PAGES, name="pages"):
        await until(gone, within_s=WITHIN_S)
        await until(lambda: _is_empty(client, namespace), within_s=WITHIN_S)


async def _is_empty(client: Client, namespace: str) -> bool:
    inventories = client.list(CONFIG_MAPS, namespace, labels="example.dev/inventory")
    return not [each async for each in inventories]


async def test_sites_reports_its_status_and_finalizes(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    example = load_example("sites")
    await install_sites(client)

    async def ready(status: str) -> Object:
        found = await client.get(SITES, "home", namespace)
        (condition,) = found.get("status", {}).get("conditions") or [{}]
        return found if condition.get("status") == status else {}

    async def gone() -> bool:
        return await get_or_none(client, SITES, "home", namespace) is None

    async def has_event(reason: str) -> bool:
        return reason in await event_reasons(client, "home", namespace)

    async with operating(transport, admin_of(api), namespace, example.SITES, name="sites"):
        await client.create(SITES, site("home", namespace, replicas=2), manager="user")
        first = await until(lambda: ready("False"), within_s=WITHIN_S)
        assert first["metadata"]["finalizers"] == ["example.dev/site"]
        await set_ready(client, "home", namespace)
        second = await until(lambda: ready("True"), within_s=WITHIN_S)
        assert second["status"]["url"] == f"http://home.{namespace}.svc"
        assert second["status"]["observedGeneration"] == 1
        await until(lambda: has_event("AllReady"), within_s=WITHIN_S)
        shown = await api.kubectl("describe", "site", "home", "-n", namespace)
        assert re.search(r"Normal +AllReady +\S+ +sites +all 2 ready", shown), shown
        await client.delete(SITES, "home", namespace)
        await until(gone, within_s=WITHIN_S)
        assert not await exists(client, DEPLOYMENTS, "home", namespace, terminating=True)

    assert await event_reasons(client, "home", namespace) >= {"AllReady", "Deleted"}


async def test_an_example_runs_as_a_program_with_health_and_metrics_and_stops_by_a_signal(
    api: ControlPlane, client: Client, namespace: str
) -> None:
    settings = {"NAMESPACE": namespace, "WATCH_NAMESPACE": namespace}
    environment = {f"GOVERNOR_PAGES_{name}": value for name, value in settings.items()}
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HOW_TO / "examples/pages.py"),
        env={**environment, "KUBECONFIG": str(api.kubeconfig), "PATH": os.environ["PATH"]},
        stderr=asyncio.subprocess.PIPE,
    )
    assert program.stderr is not None
    try:
        logged = await program.stderr.readuntil(b"controller started")
        found = re.search(rb"127\.0\.0\.1:\d+", logged)
        assert found is not None, logged
        await client.create(CONFIG_MAPS, page("home", namespace), manager="user")
        await until(lambda: exists(client, DEPLOYMENTS, "home", namespace), within_s=WITHIN_S)
        async with aiohttp.ClientSession(f"http://{found[0].decode()}") as session:
            for path in ("/healthz", "/readyz"):
                async with session.get(path) as response:
                    assert response.status == 200, await response.text()
            async with session.get("/metrics") as response:
                metrics = await response.text()
        assert 'leader_election_master_status{name="pages"} 1' in metrics
        assert 'controller_runtime_active_workers{controller="pages"}' in metrics
        assert "rest_client_requests_total" in metrics
    finally:
        program.terminate()
        await program.communicate()
    assert program.returncode == 0
    lease = await client.get(LEASES, "pages", namespace)
    assert not lease["spec"].get("holderIdentity")


@pytest.mark.parametrize(("name", "most"), [("pages", 60), ("sites", 90)])
def test_the_examples_are_as_short_as_the_page_says(name: str, most: int) -> None:
    lines = len((HOW_TO / f"examples/{name}.py").read_text().splitlines())
    assert lines <= most
    assert f"(examples/{name}.py) | {lines} |" in (HOW_TO / "write-a-controller.md").read_text()
