"""Adoption of fields that kubectl and helm manage; fields of other managers are not adopted."""

import json

from governor.kube.applyset import Outcome
from governor.kube.client import Client
from governor.kube.objects import Object
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LABEL,
    MANAGER,
    apply,
    config_map,
    deployment,
    make_set,
    outcomes,
    prune_outcomes,
)

KUBECTL = "kubectl-client-side-apply"


def managers(live: Object) -> set[tuple[str, str]]:
    return {(entry["manager"], entry["operation"]) for entry in live["metadata"]["managedFields"]}


async def test_fields_applied_by_kubectl_are_adopted_and_can_be_removed(
    api: ControlPlane, client: Client, namespace: str
) -> None:
    theirs = deployment("d", 3, minReadySeconds=5)
    await api.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(theirs))
    mine = deployment("d", 2)
    objects = make_set(client, namespace, adopted_managers=frozenset({KUBECTL}))
    report = await apply(objects, [mine])
    assert outcomes(report) == {"d": Outcome.CHANGED}
    assert not report.results[0].shared
    live = await client.get(DEPLOYMENTS, "d", namespace)
    assert live["spec"]["replicas"] == 2
    assert "minReadySeconds" not in live["spec"]
    assert "annotations" not in live["metadata"]  # kubectl's last-applied annotation is removed too
    assert live["metadata"]["labels"] == {LABEL: namespace}
    assert {manager for manager, _ in managers(live)} == {MANAGER}
    assert prune_outcomes(await objects.delete_all()) == {"d": "removed"}


async def test_without_adoption_kubectl_keeps_its_fields(api: ControlPlane, client: Client, namespace: str) -> None:
    await api.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(config_map("c", a="1", b="1")))
    objects = make_set(client, namespace)
    conflict = await apply(objects, [config_map("c", a="2")])
    assert [(each.path, each.manager) for each in conflict.results[0].conflicts] == [("data.a", KUBECTL)]
    assert (await apply(objects, [config_map("c", a="1")])).ok
    assert (await client.get(CONFIG_MAPS, "c", namespace))["data"] == {"a": "1", "b": "1"}
    assert prune_outcomes(await objects.delete_all()) == {"c": "released"}
    assert (await client.get(CONFIG_MAPS, "c", namespace))["data"] == {"a": "1", "b": "1"}


async def test_fields_of_other_managers_are_not_adopted(api: ControlPlane, client: Client, namespace: str) -> None:
    await api.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(config_map("c", a="1", b="1")))
    await client.patch(CONFIG_MAPS, "c", namespace, {"data": {"other": "1"}}, manager="other-client")
    await client.apply(CONFIG_MAPS, config_map("c", namespace, applied="1"), manager="helm")
    objects = make_set(client, namespace, adopted_managers=frozenset({KUBECTL, "helm"}))
    assert (await apply(objects, [config_map("c", a="1")])).ok
    live = await client.get(CONFIG_MAPS, "c", namespace)
    assert live["data"] == {"a": "1", "other": "1"}
    assert managers(live) >= {("other-client", "Update"), (MANAGER, "Apply")}
    assert not {KUBECTL, "helm"} & {manager for manager, _ in managers(live)}
    conflict = await apply(objects, [config_map("c", a="1", other="2")])
    assert [(each.path, each.manager) for each in conflict.results[0].conflicts] == [("data.other", "other-client")]


async def test_status_fields_are_not_adopted(client: Client, namespace: str) -> None:
    manifest = deployment("d")
    manifest["metadata"]["namespace"] = namespace
    created = await client.create(DEPLOYMENTS, manifest, manager="helm")
    await client.replace(DEPLOYMENTS, {**created, "status": {"replicas": 1}}, manager="helm", subresource="status")
    assert (await apply(make_set(client, namespace, adopted_managers=frozenset({"helm"})), [deployment("d")])).ok
    live = await client.get(DEPLOYMENTS, "d", namespace)
    kept = [entry for entry in live["metadata"]["managedFields"] if entry["manager"] == "helm"]
    assert [entry["subresource"] for entry in kept] == ["status"]


async def test_a_plan_shows_an_adoption_without_performing_it(
    api: ControlPlane, client: Client, namespace: str
) -> None:
    await api.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(config_map("c", a="1")))
    before = await client.get(CONFIG_MAPS, "c", namespace)
    objects = make_set(client, namespace, adopted_managers=frozenset({KUBECTL}))
    plan = await objects.plan([config_map("c", a="2")])
    assert outcomes(plan.apply) == {"c": Outcome.CHANGED}
    assert [each.path for each in plan.apply.results[0].differences] == [
        "data.a",
        "metadata.annotations",
        "metadata.labels",
    ]
    assert await client.get(CONFIG_MAPS, "c", namespace) == before
