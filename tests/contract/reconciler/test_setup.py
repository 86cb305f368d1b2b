"""Installing and upgrading the definitions on a real API server, over skipped versions and over newer ones."""

import asyncio
import contextlib
import io

import pytest

import governor
from governor.cli.main import run
from governor.errors import GovernorError
from governor.kube.client import Client
from governor.kube.objects import Object
from governor.reconciler.kinds import DEFINITIONS
from governor.reconciler.kinds.channel import CHANNEL
from governor.reconciler.setup.definition_plan import VERSION_ANNOTATION, Action
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import DEFINITIONS as CRDS
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.bed import HubBed, manifest
from tests.contract.reconciler.definition_bed import OLD, install_old, installer, stored_versions


async def channels(client: Client, namespace: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each async for each in client.list(CHANNEL.resource, namespace)}


async def test_installing_twice_changes_nothing_and_repairs_edits_on_request(client: Client) -> None:
    before = {each.name: await client.get(CRDS, each.name) for each in DEFINITIONS}
    assert {each.action for each in await installer(client).install(always=True)} == {Action.NONE}
    assert {each.name: await client.get(CRDS, each.name) for each in DEFINITIONS} == before

    names = {"spec": {"names": {"shortNames": ["mine"]}}}
    await client.patch(CRDS, CHANNEL.name, "", names, manager="user")
    assert {each.action for each in await installer(client).install()} == {Action.NONE}
    repaired = {each.name: each.action for each in await installer(client).install(always=True)}
    assert repaired.pop(CHANNEL.name) is Action.UPGRADE
    assert set(repaired.values()) == {Action.NONE}
    assert (await client.get(CRDS, CHANNEL.name))["spec"]["names"]["shortNames"] == ["gch"]


async def test_an_upgrade_over_a_dropped_version_stores_all_objects_anew(bare: Client, namespace: str) -> None:
    await install_old(bare, namespace, 3)

    (done,) = [each for each in await installer(bare).install() if each.name == CHANNEL.name]

    assert (done.action, done.migrated) == (Action.UPGRADE, 3)
    assert await stored_versions(bare) == [CHANNEL.resource.version]
    found = await channels(bare, namespace)
    assert {name: each["spec"] for name, each in found.items()} == {
        f"c{number}": {"modules": {"a": "1.0.0"}} for number in range(3)
    }
    change = manifest("Channel", "c0", {"modules": {"a": "2.0.0"}}, namespace)
    applied = await bare.apply(CHANNEL.resource, change, manager="user", force=True)
    assert applied["spec"] == {"modules": {"a": "2.0.0"}}


async def test_an_upgrade_that_is_interrupted_while_it_stores_objects_is_completed_later(
    bare: Client, faults: FaultyApi, namespace: str
) -> None:
    await install_old(bare, namespace, 3)

    def is_second(request: ApiRequest) -> bool:
        return request.method == "PATCH" and request.path.endswith("/channels/c1")

    faults.answer(403, which=is_second, times=2)
    for _ in range(2):
        with pytest.raises(GovernorError):
            await installer(faults.client).install()
        versions = (await bare.get(CRDS, CHANNEL.name))["spec"]["versions"]
        assert {each["name"] for each in versions} == {OLD.version, CHANNEL.resource.version}
        assert len(await channels(bare, namespace)) == 3

    await installer(faults.client).install()
    assert await stored_versions(bare) == [CHANNEL.resource.version]
    assert len(await channels(bare, namespace)) == 3


async def test_a_definition_of_a_newer_release_is_left_as_it_is(bare: Client, namespace: str) -> None:
    await install_old(bare, namespace, 1, release="99.0.0")
    before = await bare.get(CRDS, CHANNEL.name)
    for always in (False, True):
        (done,) = [each for each in await installer(bare).install(always=always) if each.name == CHANNEL.name]
        assert done.action is Action.LEAVE
    assert await bare.get(CRDS, CHANNEL.name) == before


async def test_the_running_reconciler_installs_what_is_missing(bare: Client, hub: HubBed) -> None:
    async with hub.reconciling(local_cluster=True):
        await hub.shows("Cluster", "local", lambda each: each.get("status"))
        await hub.apply("Channel", "stable", {"modules": {}})
        await hub.shows("Channel", "stable", lambda each: each.get("status"))
    (definition,) = [each async for each in bare.list(CRDS, fields=f"metadata.name={CHANNEL.name}")]
    assert definition["metadata"]["annotations"][VERSION_ANNOTATION] == governor.__version__


async def test_definitions_that_cannot_be_written_are_reported_and_awaited(
    bare: Client, hub: HubBed, faults: FaultyApi
) -> None:
    faults.answer(403, which=lambda each: each.method == "PATCH" and "customresourcedefinitions" in each.path, times=2)
    async with hub.reconciling(faults.access):
        await hub.apply("Cluster", "local", {"access": {"inCluster": {}}})
        await hub.shows("Cluster", "local", lambda each: each.get("status"))
    assert faults.count(lambda each: each.method == "PATCH" and "customresourcedefinitions" in each.path) == 3


async def governor_command(*arguments: str) -> tuple[int, str, str]:
    """Run a command in a thread, because it has an event loop of its own; return exit code, output and errors."""

    def call() -> tuple[int, str, str]:
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
            code = run(arguments)
        return code, output.getvalue(), errors.getvalue()

    return await asyncio.to_thread(call)


async def test_the_command_line_prepares_a_hub_and_shows_its_modules(
    hub: HubBed, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    monkeypatch.setenv("GOVERNOR_RECONCILER_NAMESPACE", hub.namespace)
    code, _, errors = await governor_command("reconciler", "install", "--namespace=missing")
    assert code == 7
    assert "there is no namespace missing: create it, or use --create-namespace" in errors
    code, output, errors = await governor_command("reconciler", "install")
    assert (code, errors) == (0, "")
    assert f"namespace {hub.namespace} exists\n" in output
    assert output.endswith("cluster local created\n")

    assert await governor_command("module", "list") == (0, "", "No modules found.\n")
    async with hub.reconciling():
        await hub.add_module("dapr")
        await hub.install("dapr", "dapr", valuesFrom=[{"secretRef": {"name": "s"}}])
        await hub.shows("ModuleInstance", "dapr.local", lambda each: each.get("status"))
        await hub.shows("Cluster", "local", lambda each: each["status"]["state"] == "Warning")
    code, output, _ = await governor_command("module", "list", "--cluster=local")
    assert (code, output.split()[6:10]) == (0, ["dapr", "local", "1.0.0", "Warning"])
    _, output, _ = await governor_command("module", "describe", "dapr")
    assert "Action by:     user" in output
    _, output, _ = await governor_command("cluster", "describe")
    assert "ValuesMissing  user" in output
    _, output, _ = await governor_command("cluster", "describe", "local", "-o", "json")
    assert '"kind": "Cluster"' in output
    code, _, errors = await governor_command("module", "describe", "redis")
    assert code == 4
    assert "module redis is not on local" in errors
