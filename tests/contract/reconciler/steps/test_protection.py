"""Objects of a module that an admission policy protects, on a real API server."""

import functools
import json
from typing import Any

import pytest

from governor.errors import GovernorError
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object
from governor.reconciler.release.objects import SETTINGS
from governor.reconciler.release.policy import BINDINGS, POLICIES
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEPLOYMENTS, config_map, deployment
from tests.contract.reconciler.steps.bed import ModuleBed, listed

POLICY: dict[str, Any] = {"protection": "policy"}


KINDS = "configmaps,deployments.apps,deployments.apps/scale,poddisruptionbudgets.policy"


async def grant(bed: ModuleBed, subject: str, namespace: str = "") -> None:
    """Let a subject edit everything in the modules' namespace."""
    place, name = f"--namespace={namespace or bed.space}", subject.partition("=")[2].replace(":", ".")
    verbs = "--verb=get,list,create,update,patch,delete"
    await bed.plane.kubectl("create", "role", name, verbs, f"--resource={KINDS}", place)
    await bed.plane.kubectl("create", "rolebinding", name, f"--role={name}", subject, place)


async def user(bed: ModuleBed, name: str, *override: str) -> Client:
    """Return the client of a user who may edit everything in the modules' namespace, and override some modules."""
    await grant(bed, f"--user={name}")
    for module in override:
        resources = (f"--resource-name={module}.local", "--resource=moduleinstances.runtime-governor.dev")
        place = f"--namespace={bed.namespace}"
        await bed.plane.kubectl("create", "role", f"{name}-{module}", "--verb=override", *resources, place)
        role = (f"--role={name}-{module}", f"--user={name}", place)
        await bed.plane.kubectl("create", "rolebinding", f"{name}-{module}", *role)
    return bed.client.impersonating(name)


async def refusal(client: Client, resource: ApiResource, name: str, namespace: str, change: Any, **how: Any) -> str:
    """Return why the API server refuses a change, or an empty text; nothing is written."""
    try:
        await client.patch(resource, name, namespace, change, manager="user", dry_run=True, **how)
    except GovernorError as error:
        return str(error)
    return ""


async def is_active(bed: ModuleBed, client: Client, name: str) -> bool:
    return "managed by" in await refusal(client, CONFIG_MAPS, name, bed.space, {"data": {"probe": "1"}})


async def protected(bed: ModuleBed, client: Client, name: str) -> None:
    """Wait until the API server enforces the policy."""
    await bed.until(functools.partial(is_active, bed, client, name))


async def test_edits_and_deletions_by_others_are_refused(bed: ModuleBed) -> None:
    dev, sre = await user(bed, "dev"), await user(bed, "sre", "orders")
    await bed.add("orders", **POLICY)
    await bed.deploy("orders", values=listed(config_map("a", n="1"), config_map("b", n="1")))
    await protected(bed, dev, "a")
    error = await refusal(dev, CONFIG_MAPS, "a", bed.space, {"data": {"n": "2"}})
    assert f"managed by ModuleInstance {bed.namespace}/orders.local: change Installation orders instead" in error
    label = {"metadata": {"labels": {SETTINGS.owner_label: None}}}
    assert "managed by" in await refusal(dev, CONFIG_MAPS, "a", bed.space, label)
    assert "managed by" in await refusal(dev, CONFIG_MAPS, "a", bed.space, {"binaryData": {"x": "eA=="}})
    with pytest.raises(GovernorError, match="or delete that"):
        await dev.delete(CONFIG_MAPS, "a", bed.space)
    metadata = {"metadata": {"labels": {"team": "shop"}, "annotations": {"note": "x"}, "finalizers": ["example.com/x"]}}
    await dev.patch(CONFIG_MAPS, "a", bed.space, metadata, manager="dev")
    await dev.create(CONFIG_MAPS, config_map("own", bed.space, n="1"), manager="dev")
    await dev.patch(CONFIG_MAPS, "own", bed.space, {"data": {"n": "2"}}, manager="dev")

    await sre.patch(CONFIG_MAPS, "a", bed.space, {"data": {"more": "x"}}, manager="sre")
    await bed.deploy("orders", values=listed(config_map("a", n="2"), config_map("b", n="1")))
    assert await bed.data("a") == {"n": "2", "more": "x"}

    (name,) = [each["metadata"]["name"] async for each in bed.client.list(BINDINGS) if named(each, bed, "orders")]
    before = await bed.client.get(BINDINGS, name)
    await bed.client.delete(BINDINGS, name)

    async def is_back() -> bool:
        found = await bed.find(BINDINGS, name)
        return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

    await bed.until(is_back)
    await protected(bed, dev, "a")
    await bed.delete("Installation", "orders")
    await bed.until(functools.partial(is_terminating, bed, "a"))
    assert await bed.find(POLICIES, name) is None, "the policy is removed first"
    assert await bed.find(BINDINGS, name) is None
    await dev.patch(CONFIG_MAPS, "a", bed.space, {"metadata": {"finalizers": None}}, manager="dev")
    await bed.gone("ModuleInstance", "orders.local")
    assert await bed.data("own") == {"n": "2"}


def named(found: Object, bed: ModuleBed, module: str) -> bool:
    return str(found["metadata"]["name"]).startswith(f"{module}.{bed.namespace}.")


async def is_terminating(bed: ModuleBed, name: str) -> bool:
    found = await bed.find(CONFIG_MAPS, name)
    return found is not None and "deletionTimestamp" in found["metadata"]


CONTAINERS = [{"name": "main", "image": "a"}, {"name": "sidecar", "image": "a"}, {"name": "other", "image": "a"}]
IGNORED = [
    {"paths": ["data.n", 'data["x-*"]'], "kind": "ConfigMap", "name": "a*"},
    {"paths": ["spec.template.spec.containers[main].image", "spec.template.spec.containers[sidecar]"], "group": "apps"},
    {"paths": ["spec.paused"]},
]


def container(name: str, **change: Any) -> Object:
    return {"spec": {"template": {"spec": {"containers": [{"name": name, **change}]}}}}


async def test_ignored_fields_and_restarts_may_be_changed_and_nothing_beside_them(bed: ModuleBed) -> None:
    dev = await user(bed, "dev")
    web = deployment("web", replicas=1)
    web["spec"]["template"]["spec"]["containers"] = CONTAINERS
    await bed.add("orders", drift={"ignored": IGNORED}, **POLICY)
    objects = listed(config_map("abc", n="1", m="1"), config_map("b", n="1"), web)
    await bed.install("orders", "orders", values=objects)
    await bed.is_applied("orders")
    await protected(bed, dev, "b")
    strategic = functools.partial(refusal, dev, content_type="application/strategic-merge-patch+json")

    async def is_allowed(resource: ApiResource, name: str, change: Object) -> bool:
        error = await strategic(resource, name, bed.space, change)
        assert not error or "managed by" in error, error
        return not error

    for change in ({"n": "2"}, {"x-1": "added"}, {"n": "2", "x-2": "y"}, {"n": None}):
        assert await is_allowed(CONFIG_MAPS, "abc", {"data": change}), change
    for change in ({"m": "2"}, {"other": "added"}, {"m": None}, {"n": "2", "m": "2"}):
        assert not await is_allowed(CONFIG_MAPS, "abc", {"data": change}), change
    assert not await is_allowed(CONFIG_MAPS, "b", {"data": {"n": "2"}}), "the rule is for other names"
    restart = {"kubectl.kubernetes.io/restartedAt": "now", "runtime-governor.dev/restart": "digest"}
    allowed: list[Object] = [
        {"spec": {"template": {"metadata": {"annotations": restart}}}},
        {"spec": {"paused": True}},
        container("main", image="b"),
        container("sidecar", image="b", command=["x"]),
        {"spec": {"template": {"spec": {"containers": [{"name": "sidecar", "$patch": "delete"}]}}}},
        {"status": {"replicas": 1}},
    ]
    for each in allowed:
        assert await is_allowed(DEPLOYMENTS, "web", each), each
    refused: list[Object] = [
        {"spec": {"replicas": 2}},
        {"spec": {"template": {"metadata": {"annotations": restart | {"more": "x"}}}}},
        {"spec": {"template": {"metadata": {"labels": {"more": "x"}}}}},
        container("main", image="b", command=["x"]),
        container("other", image="b"),
        container("added", image="b"),
    ]
    for each in refused:
        assert not await is_allowed(DEPLOYMENTS, "web", each), each
    scale = {"spec": {"replicas": 3}}
    assert not await refusal(dev, DEPLOYMENTS, "web", bed.space, scale, subresource="scale")
    hpa = bed.client.impersonating("system:serviceaccount:kube-system:horizontal-pod-autoscaler")
    await grant(bed, "--serviceaccount=kube-system:horizontal-pod-autoscaler")
    assert not await refusal(hpa, DEPLOYMENTS, "web", bed.space, scale)


async def test_protection_is_removed_by_another_choice_and_holds_for_a_tenant(bed: ModuleBed) -> None:
    dev = await user(bed, "dev")
    await bed.plane.kubectl("create", "serviceaccount", "tenant", f"--namespace={bed.space}")
    await grant(bed, f"--serviceaccount={bed.space}:tenant")
    await bed.add("orders")
    how = {"serviceAccountName": "tenant"}
    await bed.deploy("orders", values=listed(config_map("a", n="1")), **how, **POLICY)
    await protected(bed, dev, "a")
    await bed.deploy("orders", values=listed(config_map("a", n="2")), **how, **POLICY)
    assert await bed.data("a") == {"n": "2"}, "written as the tenant"

    found = await bed.deploy("orders", values=listed(config_map("a", n="2")), protection="none", **how)
    assert found["spec"]["drift"] == {"mode": "off"}
    assert "policyDigest" not in found["status"]
    assert not [each async for each in bed.client.list(POLICIES) if named(each, bed, "orders")]

    async def is_editable() -> bool:
        return not await is_active(bed, dev, "a")

    await bed.until(is_editable)


async def test_orphaned_objects_are_not_protected_any_more(bed: ModuleBed) -> None:
    dev = await user(bed, "dev")
    await bed.add("orders", **POLICY)
    await bed.deploy("orders", values=listed(config_map("a", n="1")), deletionPolicy="orphan")
    await protected(bed, dev, "a")
    await bed.delete("Installation", "orders")
    await bed.gone("ModuleInstance", "orders.local")
    assert not [each async for each in bed.client.list(POLICIES) if named(each, bed, "orders")]
    assert await bed.data("a") == {"n": "1"}


async def test_a_protected_module_that_has_not_changed_is_not_written(bed: ModuleBed) -> None:
    await bed.add("orders", **POLICY)
    await bed.deploy("orders", values=listed(config_map("a", n="1")))
    names = (POLICIES, BINDINGS)
    before = [[each async for each in bed.client.list(kind) if named(each, bed, "orders")] for kind in names]
    await bed.stop()
    await bed.start()
    await bed.edit("a", "other", more="x")
    await bed.edit("a", "other", n="2")
    await bed.has_data("a", {"n": "1", "more": "x"})
    after = [[each async for each in bed.client.list(kind) if named(each, bed, "orders")] for kind in names]
    assert json.dumps(after) == json.dumps(before)
