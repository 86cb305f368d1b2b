"""Modules removed from a cluster: in which order, what stays, and that nothing of ours does."""

from typing import Any

import pytest

from governor.kube.objects import Object
from governor.reconciler.release.objects import SETTINGS, owner_of
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEFINITIONS,
    NAMESPACES,
    SECRETS,
    config_map,
    custom,
    definition,
    kind_of,
)
from tests.contract.reconciler.bed import LOCAL, RESOURCES, condition, state
from tests.contract.reconciler.steps.bed import ModuleBed, listed

HELD = {"metadata": {"finalizers": ["example.dev/held"]}}
RELEASED = {"metadata": {"finalizers": None}}
POLICY = "runtime-governor.dev/deletion-policy"


def names(objects: list[Object]) -> set[str]:
    return {each["metadata"]["name"] for each in objects}


async def traces(bed: ModuleBed) -> set[str]:
    """Return what a hub leaves in its namespace for modules."""
    found = [each async for each in bed.client.list(CONFIG_MAPS, bed.namespace)]
    found += [each async for each in bed.client.list(SECRETS, bed.namespace)]
    return {each for each in names(found) if each.startswith(("module-", "release-"))}


async def test_modules_are_removed_after_those_that_depend_on_them_and_leave_nothing(bed: ModuleBed) -> None:
    space = f"{bed.space}-new"
    await bed.add("store", namespace=space, values=listed(config_map("store", space)))
    await bed.add("web", namespace=space, dependsOn=["store"], values=listed(config_map("web", space)))
    for name in ("store", "web"):
        await bed.install(name, name)
        await bed.becomes(name, "Ready")
    assert await traces(bed) == {"module-store", "module-web"}
    await bed.client.patch(CONFIG_MAPS, "web", space, HELD, manager="user")
    for name in ("store", "web"):
        await bed.delete("Installation", name)
    found = await bed.becomes("store", "DependentsExist")
    assert found["status"]["message"] == "waiting until web are removed, which depend on this module"
    assert state(found) == "Deleting"
    found = await bed.becomes("web", "Removing")
    assert "finalizer example.dev/held" in found["status"]["message"]
    assert await bed.find(CONFIG_MAPS, "store", space) is not None
    await bed.client.patch(CONFIG_MAPS, "web", space, RELEASED, manager="user")
    await bed.finalize_namespace(space)
    for name in ("store", "web"):
        await bed.gone("ModuleInstance", f"{name}.local")
    assert await bed.find(NAMESPACES, space) is None
    assert await traces(bed) == set()
    await bed.shows("Cluster", "local", lambda each: each["status"]["ready"] == "0/0" and state(each) == "Ready")


async def test_a_paused_cluster_keeps_a_module_whose_installation_is_deleted(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(config_map("a", n="1")))
    await bed.deploy("orders")
    await bed.apply("Cluster", "local", LOCAL | {"paused": True})
    await bed.becomes("orders", "Paused")
    await bed.edit("a", n="2")
    await bed.delete("Installation", "orders")
    await bed.shows(
        "ModuleInstance",
        "orders.local",
        lambda each: each["metadata"].get("deletionTimestamp") and state(each) == "Deleting",
    )
    assert await bed.data("a") == {"n": "2"}
    await bed.apply("Cluster", "local", LOCAL | {"paused": False})
    await bed.gone("ModuleInstance", "orders.local")
    assert await bed.data("a") is None


async def test_kept_objects_stay_when_a_module_is_upgraded_or_removed(bed: ModuleBed) -> None:
    kept = config_map("kept")
    kept["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    other = config_map("other")
    other["metadata"]["annotations"] = kept["metadata"]["annotations"]
    await bed.add("orders")
    await bed.deploy("orders", values=listed(kept, other, config_map("a")))
    await bed.deploy("orders", values=listed(other, config_map("a")))
    assert await bed.data("kept") == {}
    await bed.delete("Installation", "orders")
    await bed.gone("ModuleInstance", "orders.local")
    assert await bed.data("other") == {}
    assert await bed.data("a") is None
    assert await traces(bed) == set()


@pytest.mark.parametrize("by", ["policy", "annotation"])
async def test_an_orphaned_module_leaves_its_objects_and_no_trace_in_the_hub(bed: ModuleBed, by: str) -> None:
    await bed.add("orders", values=listed(config_map("a")))
    await bed.deploy("orders", **({"deletionPolicy": "orphan"} if by == "policy" else {}))
    if by == "annotation":
        await bed.client.patch(CONFIG_MAPS, "a", bed.space, HELD, manager="user")
        await bed.delete("Installation", "orders")
        await bed.becomes("orders", "Removing")
        change = {"metadata": {"annotations": {POLICY: "orphan"}}}
        await bed.client.patch(RESOURCES["ModuleInstance"], "orders.local", bed.namespace, change, manager="user")
    else:
        await bed.delete("Installation", "orders")
    await bed.gone("ModuleInstance", "orders.local")
    assert await bed.data("a") == {}
    assert await traces(bed) == set()


async def test_a_deleted_cluster_leaves_its_modules_and_their_inventory(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(config_map("a", n="1")))
    await bed.deploy("orders")
    await bed.delete("Cluster", "local")
    await bed.gone("Cluster", "local")
    assert await bed.data("a") == {"n": "1"}
    assert "module-orders" in await traces(bed)


async def test_a_removal_that_takes_too_long_is_reported(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(config_map("a")))
    await bed.deploy("orders")
    await bed.client.patch(CONFIG_MAPS, "a", bed.space, HELD, manager="user")
    await bed.delete("Installation", "orders")
    await bed.becomes("orders", "Removing")
    await bed.advance(301.0)
    found = await bed.shows(
        "ModuleInstance", "orders.local", lambda each: condition(each, "Finalized").get("status") == "False"
    )
    assert "has held the object for more than 300 s" in condition(found, "Finalized")["message"]
    await bed.has_event("orders", "Warning", "FinalizerTimeout")
    await bed.client.patch(CONFIG_MAPS, "a", bed.space, RELEASED, manager="user")
    await bed.gone("ModuleInstance", "orders.local")


class Defined:
    """A module that defines a kind, with a resource of its own, and one that a user has made."""

    def __init__(self, bed: ModuleBed) -> None:
        self.definition = definition("Thing", bed.group)
        self.kind = kind_of(self.definition)
        self.own, self.foreign, self.child = (custom("Thing", bed.group, name) for name in ("own", "foreign", "child"))
        # A label that only the module should set proves nothing.
        labels = {SETTINGS.owner_label: owner_of("things", bed.namespace).id}
        self.foreign["metadata"] |= {"namespace": bed.space, "labels": labels}

    async def deploy(self, bed: ModuleBed, policy: str) -> None:
        values = listed(self.definition, self.own, config_map("operator"))
        await bed.add("things", customResources=policy, values=values)
        await bed.deploy("things")
        await bed.client.create(self.kind, self.foreign, manager="user")
        owner = await bed.find(self.kind, "own") or {}
        reference = {"apiVersion": self.kind.api_version, "kind": "Thing", "name": "own"}
        reference["uid"] = owner["metadata"]["uid"]
        self.child["metadata"] |= {"namespace": bed.space, "ownerReferences": [reference]}
        await bed.client.create(self.kind, self.child, manager="operator")


async def test_custom_resources_of_others_stop_a_removal_before_anything_is_removed(bed: ModuleBed) -> None:
    things = Defined(bed)
    await things.deploy(bed, "block")
    await bed.delete("Installation", "things")
    found = await bed.becomes("things", "CustomResourcesExist")
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert "foreign exist of kinds that the module defines: delete them" in found["status"]["message"]
    assert "child" not in found["status"]["message"]
    assert await bed.data("operator") == {}
    assert await bed.find(things.kind, "own") is not None
    await bed.client.delete(things.kind, "foreign", bed.space)
    await bed.gone("ModuleInstance", "things.local")
    assert await bed.find(DEFINITIONS, things.definition["metadata"]["name"]) is None


async def test_definitions_stay_with_the_resources_of_others_if_those_are_orphaned(bed: ModuleBed) -> None:
    things = Defined(bed)
    await things.deploy(bed, "orphan")
    await bed.delete("Installation", "things")
    await bed.gone("ModuleInstance", "things.local")
    assert await bed.data("operator") is None
    assert await bed.find(things.kind, "own") is None
    assert await bed.find(things.kind, "foreign") is not None
    assert await traces(bed) == set()


async def test_resources_of_others_are_deleted_before_the_operator_if_they_cascade(bed: ModuleBed) -> None:
    things = Defined(bed)
    await things.deploy(bed, "cascade")
    await bed.client.patch(things.kind, "foreign", bed.space, HELD, manager="user")
    await bed.delete("Installation", "things")
    found = await bed.becomes("things", "DeletingCustomResources")
    assert state(found) == "Deleting"
    assert await bed.data("operator") == {}
    await bed.client.patch(things.kind, "foreign", bed.space, RELEASED, manager="user")
    await bed.gone("ModuleInstance", "things.local")
    assert await bed.find(DEFINITIONS, things.definition["metadata"]["name"]) is None


async def test_deleting_a_module_instance_that_a_user_made_removes_nothing(bed: ModuleBed) -> None:
    """The inventory of the module is there, because its Cluster was deleted and created again."""
    await bed.add("orders", values=listed(config_map("a")))
    spec: Any = (await bed.deploy("orders"))["spec"]
    await bed.delete("Cluster", "local")
    await bed.gone("Cluster", "local")
    await bed.delete("Installation", "orders")
    await bed.apply("Cluster", "local", LOCAL)
    await bed.apply("ModuleInstance", "orders.local", spec)
    await bed.becomes("orders", "NotManaged")
    await bed.delete("ModuleInstance", "orders.local")
    await bed.gone("ModuleInstance", "orders.local")
    assert await bed.data("a") == {}
