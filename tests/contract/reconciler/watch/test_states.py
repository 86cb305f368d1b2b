"""What a watch knows of inventories and applied objects, which modules it reports, and what it costs."""

from collections import Counter

from governor.kube.applyset.entries import is_unchanged, seen_in
from governor.kube.objects import ApiResource
from governor.kube.readiness import State, compute_readiness
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEFINITIONS,
    DEPLOYMENTS,
    SECRETS,
    config_map,
    custom,
    deployment,
)
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.watch.bed import TargetBed, cluster_role, definition, secret

CLUSTER_ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
AUTOSCALERS = ApiResource("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", namespaced=True)
MODULES = 12
DISCOVERY = frozenset({"/api", "/apis", "/readyz"})


async def test_states_equal_those_of_the_live_objects(target: TargetBed) -> None:
    group = f"{target.namespace}.example"
    crd, role = definition("Widget", group), cluster_role(target.namespace)
    namespaced = [config_map("a", key="x"), secret("a"), deployment("a"), custom("Widget", group, "a", size=1)]
    await target.apply("dapr", crd, role, *namespaced)
    async with target.watching() as watched:
        watch = watched.watch
        inventory = watch.inventory("dapr")
        assert inventory is not None
        entries = inventory.snapshot().entries
        assert entries == await target.set_of("dapr").inventory()
        refs = [target.ref(each) for each in namespaced] + [each for each in entries if not each.namespace]
        assert sorted(refs) == sorted(entries)
        for ref in refs:
            resource = await target.client.discovery.find(ref.group, ref.kind)
            live = await target.client.get(resource, ref.name, ref.namespace)
            state = watch.state(ref)
            assert state is not None
            for ignored in ((), (("spec", "replicas"),)):
                assert state.seen(ignored) == seen_in(live, resource, ignored)
            assert is_unchanged(entries[ref].seen, state.seen())
            assert state.readiness == compute_readiness(live)
            assert (state.uid, state.owner) == (live["metadata"]["uid"], "dapr")
            assert watch.is_known(ref)
        assert watch.owners() == {"dapr"}
        assert watch.problem == ""
        await target.client.delete(DEFINITIONS, crd["metadata"]["name"])


async def test_a_restart_costs_one_list_per_kind(target: TargetBed, faults: FaultyApi) -> None:
    for number in range(MODULES):
        name = f"m{number}"
        await target.apply(name, config_map(name), secret(name), deployment(name))
    await target.apply("m0.hooks", config_map("hook"))
    async with target.watching(faults.client) as watched:
        lists = [each for each in faults.requests if not each.is_watch and each.path not in DISCOVERY]
        inventories = CONFIG_MAPS.path(target.namespace)
        kinds = (CONFIG_MAPS, SECRETS, DEPLOYMENTS, AUTOSCALERS)
        assert Counter(each.path for each in lists) == dict.fromkeys([inventories, *(each.path() for each in kinds)], 1)
        watches = {each.path for each in faults.requests if each.is_watch}
        assert watches <= {each.path for each in lists}
        assert not any("continue" in each.query for each in lists)
        assert all(each.method == "GET" for each in faults.requests)
        watch = watched.watch
        assert watch.owners() == {*(f"m{number}" for number in range(MODULES)), "m0.hooks"}
        assert set(watched.changes) == {f"m{number}" for number in range(MODULES)}
        for owner in watch.owners():
            inventory = watch.inventory(owner)
            assert inventory is not None
            states = {ref: watch.state(ref) for ref in inventory.snapshot().entries}
            assert all(states.values())


async def test_changes_of_objects_report_their_module(target: TargetBed) -> None:
    await target.apply("dapr", config_map("a"), deployment("a"))
    await target.apply("redis", config_map("b"))
    client, namespace = target.client, target.namespace
    async with target.watching() as watched:
        watched.changes.clear()
        await client.patch(CONFIG_MAPS, "b", namespace, {"data": {"x": "1"}}, manager="tests")
        await watched.reports("redis")
        await client.patch(DEPLOYMENTS, "a", namespace, {"metadata": {"annotations": {"x": "1"}}}, manager="tests")
        await watched.reports("dapr")
        replicas = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
        status = {"status": {"observedGeneration": 2, **replicas}}
        await client.patch(DEPLOYMENTS, "a", namespace, status, manager="tests", subresource="status")
        await watched.reports("dapr")
        state = watched.watch.state(target.ref(deployment("a")))
        assert state is not None
        assert state.readiness.state is State.READY
        version = state.resource_version
        # No effect on the readiness: the state is current, but nothing is reported.
        condition = {"type": "Available", "status": "True", "reason": "x", "message": "x"}
        await client.patch(
            DEPLOYMENTS, "a", namespace, {"status": {"conditions": [condition]}}, manager="tests", subresource="status"
        )
        await watched.until(
            lambda: (now := watched.watch.state(target.ref(deployment("a")))) and now.resource_version != version
        )
        assert watched.changes == []
        await client.delete(CONFIG_MAPS, "a", namespace)
        await watched.reports("dapr")
        assert watched.watch.state(target.ref(config_map("a"))) is None
        assert watched.watch.is_known(target.ref(config_map("a")))
        label = {"metadata": {"labels": {target.settings.owner_label: None}}}
        await client.patch(CONFIG_MAPS, "b", namespace, label, manager="tests")
        await watched.reports("redis")
        assert watched.watch.state(target.ref(config_map("b"))) is None


async def test_changes_of_inventories_report_their_module(target: TargetBed) -> None:
    async with target.watching() as watched:
        assert watched.watch.inventory("dapr") is None
        await target.apply("dapr", config_map("a"))
        await watched.reports("dapr")
        await watched.until(lambda: watched.watch.inventory("dapr"))
        await target.apply("dapr.hooks", config_map("b"))
        await watched.reports("dapr")
        assert watched.watch.owners() == {"dapr", "dapr.hooks"}
        await target.client.patch(
            CONFIG_MAPS, "module-dapr", target.namespace, {"data": {"entries": "[]"}}, manager="tests"
        )
        await watched.reports("dapr")
