"""A cluster that reconciles itself: bootstrapped by one command, upgraded by itself, killed meanwhile.

No kubelet runs: the tests start the program of the Deployment, and write the status of that.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Transport
from governor.kube.lease import LEASES
from governor.reconciler.bootstrap import Bootstrap, bootstrap, modules_of
from governor.reconciler.charts.package import pack, read_archive
from governor.reconciler.main import NAME
from governor.reconciler.render.request import Renderer
from governor.reconciler.setup.own_modules import RECONCILER, OwnModule, publish
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEPLOYMENTS, config_map
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.reconciler.bed import LOCAL, state
from tests.contract.reconciler.kill_bed import KillBed, writes
from tests.contract.reconciler.steps.bed import listed
from tests.contract.reconciler.test_setup import governor_command

IMAGE = "registry.example.com:5000/governor"
INSTANCE = f"{RECONCILER}.local"


@pytest.fixture
async def bed(
    control_plane: ControlPlane,
    client: Client,
    transport: Transport,
    namespace: str,
    tmp_path: Path,
    renderer: Renderer,
    faults: FaultyApi,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[KillBed]:
    """A hub whose modules' namespace is its own; the program in the cluster is not started yet."""
    monkeypatch.setenv("PATH", str(provide(["renderer"])["renderer"].parent))
    bed = KillBed(control_plane, client, transport, namespace, tmp_path, renderer, faults)
    bed.space = namespace
    try:
        yield bed
    finally:
        await bed.program.stop()


async def run_pod(bed: KillBed, replicas: int = 1) -> None:
    """Start the program as soon as its Deployment exists, as kubelet does, and report that it is available."""
    await bed.ready_deployment(RECONCILER, replicas)
    await bed.program.start()


def newer(module: OwnModule, version: str, image: str = "") -> OwnModule:
    """Return a module in another version, with a chart that differs."""
    files = read_archive(module.packed, module.name)
    text = files["Chart.yaml"].decode().replace(module.version, version)
    values = {"image": {"repository": image}} if image else module.values
    packed = pack(files | {"Chart.yaml": text.encode()}, module.name)
    return msgspec.structs.replace(module, version=version, packed=packed, values=values)


async def bootstrapped(bed: KillBed) -> OwnModule:
    """Bootstrap the cluster and return the module that it reconciles itself with."""
    (module,) = modules_of(IMAGE, with_server=False, agent_namespaces=())
    lines: list[str] = []
    wanted = Bootstrap(bed.namespace, (module,), 60.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(run_pod(bed))
        group.create_task(bootstrap(admin_of(bed.plane), wanted, lines.append))
    assert lines[-1].startswith("the cluster reconciles itself"), lines
    return module


async def test_an_empty_cluster_reconciles_itself_after_one_command(bed: KillBed) -> None:
    await bootstrapped(bed)
    lease = await bed.client.get(LEASES, NAME, bed.namespace)
    assert lease["spec"]["holderIdentity"]
    deployment = await bed.client.get(DEPLOYMENTS, RECONCILER, bed.namespace)
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith(f"{IMAGE}:")
    settings = await bed.client.get(CONFIG_MAPS, RECONCILER, bed.namespace)
    assert f'namespace: "{bed.namespace}"' in settings["data"]["reconciler.yaml"]

    await bed.add("orders", values=listed(config_map("orders", n="1")))
    await bed.deploy("orders")
    assert await bed.data("orders") == {"n": "1"}
    await bed.shows("Cluster", "local", lambda each: each["status"].get("ready") == "2/2")
    await bed.edit(RECONCILER, **{"reconciler.yaml": "stolen"})
    await bed.has_data(RECONCILER, settings["data"])


async def test_the_command_gives_up_in_time_and_continues_later(bed: KillBed) -> None:
    (module,) = modules_of(f"{IMAGE}:1.2", with_server=False, agent_namespaces=())
    wanted = Bootstrap(bed.namespace, (module,), 0.0)
    with pytest.raises(GovernorError, match="Run the command again to continue") as found:
        await bootstrap(admin_of(bed.plane), wanted, lambda _: None)
    assert found.value.kind is Kind.DEADLINE
    lease = await bed.find(LEASES, NAME, bed.namespace) or {"spec": {}}
    assert not lease["spec"].get("holderIdentity"), "it does not keep the cluster from another one"
    lines: list[str] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(run_pod(bed))
        wanted = msgspec.structs.replace(wanted, timeout_s=60.0)
        group.create_task(bootstrap(admin_of(bed.plane), wanted, lines.append))
    assert f"Module {RECONCILER}-{module.version} exists" in lines
    other = msgspec.structs.replace(module, packed=pack({"Chart.yaml": b""}, RECONCILER))
    with pytest.raises(GovernorError, match="exists with another chart"):
        await publish(bed.client, bed.namespace, other)


async def test_a_self_upgrade_survives_kills_at_five_points(bed: KillBed) -> None:
    module = await bootstrapped(bed)
    before = await bed.client.get(DEPLOYMENTS, RECONCILER, bed.namespace)
    points = {
        "before the chart is claimed": (writes("PUT", f"/configmaps/module-{RECONCILER}"), 0),
        "before its own Deployment is changed": (writes("PATCH", f"/deployments/{RECONCILER}"), 0),
        "before the change is recorded": (writes("PUT", f"/configmaps/module-{RECONCILER}"), 1),
        "before the status is written": (writes("PATCH", f"/moduleinstances/{INSTANCE}/status"), 0),
        "while the next one takes the lease": (writes("PUT", f"/leases/{NAME}"), 0),
    }
    upgraded = newer(module, "9.0.0", "registry.example.com/next")
    (first, passed), *others = points.values()
    bed.kill_before(first, passed)
    await publish(bed.client, bed.namespace, upgraded)
    await bed.died()
    for which, after in others:
        bed.kill_before(which, after)
        await bed.restart()
        await bed.died()
    await bed.restart()
    await bed.is_applied(RECONCILER, version="9.0.0")
    await bed.ready_deployment(RECONCILER, 1)
    found = await bed.becomes(RECONCILER, "Ready", version="9.0.0")
    after_all = await bed.client.get(DEPLOYMENTS, RECONCILER, bed.namespace)
    assert after_all["metadata"]["uid"] == before["metadata"]["uid"]
    image = after_all["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith("registry.example.com/next:")
    assert [each["version"] for each in found["status"]["history"]] == [module.version]
    assert list(await bed.instances()) == [INSTANCE]


async def test_a_broken_new_version_of_itself_is_rolled_back_by_the_old_one(bed: KillBed) -> None:
    module = await bootstrapped(bed)
    before = await bed.client.get(DEPLOYMENTS, RECONCILER, bed.namespace)
    await bed.apply("Cluster", "local", LOCAL | {"pendingTimeout": 1})
    await publish(bed.client, bed.namespace, newer(module, "9.0.0", "registry.example.com/broken"))
    await bed.until(lambda: has_image(bed, "registry.example.com/broken:"))
    await bed.until(lambda: has_image(bed, f"{IMAGE}:"))
    await bed.ready_deployment(RECONCILER, 1)
    found = await bed.becomes(RECONCILER, "RolledBack", version="9.0.0")
    assert found["status"]["lastApplied"]["version"] == module.version
    after = await bed.client.get(DEPLOYMENTS, RECONCILER, bed.namespace)
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


async def has_image(bed: KillBed, expected: str) -> bool:
    found = await bed.client.get(DEPLOYMENTS, RECONCILER, bed.namespace)
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"]).startswith(expected)


async def test_deleting_the_installation_of_the_reconciler_leaves_it_in_place(bed: KillBed) -> None:
    await bootstrapped(bed)
    await bed.delete("Installation", RECONCILER)
    await bed.gone("ModuleInstance", INSTANCE)
    assert await bed.find(DEPLOYMENTS, RECONCILER) is not None
    await bed.shows("Cluster", "local", lambda each: state(each) == "Ready")


def test_server_and_agent_are_modules_like_any_other() -> None:
    modules = modules_of(f"{IMAGE}:1.2", with_server=True, agent_namespaces=("shop", "stock"))
    assert [(each.name, each.depends_on) for each in modules] == [
        ("governor-reconciler", ()),
        ("governor-server", ()),
        ("governor-agent", ("governor-server",)),
    ]
    assert all(each.values["image"] == {"repository": IMAGE, "tag": "1.2"} for each in modules)
    assert modules[2].values["namespaces"] == ["shop", "stock"]
    with pytest.raises(GovernorError, match="--agent-namespace"):
        modules_of(IMAGE, with_server=True, agent_namespaces=())


async def test_the_command_needs_an_image() -> None:
    code, _, errors = await governor_command("cluster", "bootstrap")
    assert code == 2
    assert "--image" in errors
