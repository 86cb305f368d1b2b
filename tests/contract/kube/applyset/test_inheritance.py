"""Objects of sets that are gone: another set takes them over with their owner label."""

from typing import Any

import pytest

from governor.kube.applyset import Outcome
from governor.kube.client import Client
from governor.kube.objects import Object, ObjectRef
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    LABEL,
    MANAGER,
    NAMESPACES,
    apply,
    config_map,
    exists,
    make_set,
    namespace_of,
    outcomes,
    prune_outcomes,
)

GONE = frozenset({"gone"})


async def leave(client: Client, namespace: str, manifest: Object, **settings: Any) -> None:
    """Apply an object as the set ``gone``, and remove the set without its object."""
    gone = make_set(client, namespace, owner="gone", name="gone", **settings)
    assert (await apply(gone, [manifest])).ok
    await gone.orphan()


def owner_of(live: Object) -> str:
    return str(live["metadata"]["labels"][LABEL])


@pytest.mark.parametrize("refuse_foreign", [False, True])
@pytest.mark.parametrize("manager", ["gone-manager", MANAGER])
async def test_an_inherited_object_becomes_the_set_s_with_its_fields(
    client: Client, namespace: str, manager: str, refuse_foreign: bool
) -> None:
    await leave(client, namespace, config_map("c", a="1", b="1"), manager=manager)
    await client.patch(CONFIG_MAPS, "c", namespace, {"data": {"theirs": "1"}}, manager="other-client")
    refused = make_set(client, namespace, refuse_foreign=refuse_foreign, inherited_owners=frozenset({"another", ""}))
    assert outcomes(await apply(refused, [config_map("c", a="2")])) == {"c": Outcome.REFUSED}
    objects = make_set(client, namespace, refuse_foreign=refuse_foreign, inherited_owners=GONE)
    report = await apply(objects, [config_map("c", a="2")])
    assert (outcomes(report), report.results[0].shared) == ({"c": Outcome.CHANGED}, False)
    live = await client.get(CONFIG_MAPS, "c", namespace)
    assert (owner_of(live), live["data"]) == (namespace, {"a": "2", "theirs": "1"})
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {MANAGER, "other-client"}
    assert (await apply(objects, [config_map("c", a="2")])).unsent == 1
    assert prune_outcomes(await objects.delete_all()) == {"c": "removed"}
    assert not await exists(client, CONFIG_MAPS, "c", namespace)


async def test_a_label_that_the_gone_set_wrote_when_it_adopted_the_object_is_replaced(
    client: Client, namespace: str
) -> None:
    await client.create(CONFIG_MAPS, config_map("c", namespace, a="1"), manager="helm")
    await leave(client, namespace, config_map("c", a="1"), adopted_managers=frozenset({"helm"}))
    objects = make_set(client, namespace, inherited_owners=GONE)
    assert outcomes((await objects.plan([config_map("c", a="1")])).apply) == {"c": Outcome.CHANGED}
    assert outcomes(await apply(objects, [config_map("c", a="1")])) == {"c": Outcome.CHANGED}
    assert owner_of(await client.get(CONFIG_MAPS, "c", namespace)) == namespace


async def test_a_plan_shows_an_inheritance_without_performing_it(client: Client, namespace: str) -> None:
    await leave(client, namespace, config_map("c", a="1"), manager="gone-manager")
    before = await client.get(CONFIG_MAPS, "c", namespace)
    plan = await make_set(client, namespace, inherited_owners=GONE).plan([config_map("c", a="2")])
    assert outcomes(plan.apply) == {"c": Outcome.CHANGED}
    differences = {each.path: each.new for each in plan.apply.results[0].differences}
    assert differences == {"data.a": "2", f'metadata.labels["{LABEL}"]': namespace}
    assert await client.get(CONFIG_MAPS, "c", namespace) == before


async def test_a_field_of_another_client_is_a_conflict_and_the_object_is_taken_over(
    client: Client, namespace: str
) -> None:
    await leave(client, namespace, config_map("c", a="1"))
    await client.patch(CONFIG_MAPS, "c", namespace, {"data": {"a": "3"}}, manager="other-client")
    report = await apply(make_set(client, namespace, inherited_owners=GONE), [config_map("c", a="2")])
    assert [(each.path, each.manager) for each in report.results[0].conflicts] == [("data.a", "other-client")]
    live = await client.get(CONFIG_MAPS, "c", namespace)
    assert (owner_of(live), live["data"]) == (namespace, {"a": "3"})


async def test_a_shared_namespace_is_pruned_by_the_set_that_inherits_it(client: Client, namespace: str) -> None:
    shared = f"{namespace}-shared"
    creator = make_set(client, namespace, owner="gone", name="gone")
    assert (await apply(creator, [namespace_of(shared)])).ok
    objects = make_set(client, namespace, inherited_owners=GONE)
    assert (await apply(objects, [config_map("c", shared)])).ok
    assert prune_outcomes(await creator.delete_all()) == {shared: "held"}
    await creator.orphan()
    manifests = [namespace_of(shared), config_map("c", shared)]
    assert (await apply(objects, manifests)).ok
    assert owner_of(await client.get(NAMESPACES, shared)) == namespace
    planned = await objects.delete_all(dry_run=True)
    assert prune_outcomes(planned) == {"c": "removed", shared: "removed"}


async def test_a_label_that_was_set_back_is_drift(client: Client, namespace: str) -> None:
    await leave(client, namespace, config_map("c"))
    objects = make_set(client, namespace, inherited_owners=GONE)
    await objects.converge([config_map("c")])
    await client.patch(CONFIG_MAPS, "c", namespace, {"metadata": {"labels": {LABEL: "gone"}}}, manager="other-client")
    report = await objects.converge([config_map("c")])
    assert [each.ref for each in report.drift.objects] == [ObjectRef("", "ConfigMap", namespace, "c")]
    assert report.ok
    assert owner_of(await client.get(CONFIG_MAPS, "c", namespace)) == namespace
