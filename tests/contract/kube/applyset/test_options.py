"""Options of a caller: objects of others, order, kept objects, removals, rehearsal, and finding drift only."""

import asyncio

from governor.kube.applyset import Outcome, UnrecordedError
from governor.kube.applyset.results import FOREIGN
from governor.kube.client import Client, Limits, Transport
from governor.kube.objects import ObjectRef
from governor.process.clock import VirtualClock
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INVENTORY,
    LABEL,
    RecordingClient,
    apply,
    config_map,
    deployment,
    error_of,
    exists,
    make_set,
    outcomes,
    prune_outcomes,
)
from tests.contract.kube.bed import FaultyApi, admin_of


def ref(namespace: str, name: str) -> ObjectRef:
    return ObjectRef("", "ConfigMap", namespace, name)


async def test_an_object_of_another_manager_is_refused_even_if_it_is_equal(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("c", namespace, a="1"), manager="helm")
    report = await apply(make_set(client, namespace, refuse_foreign=True), [config_map("c", a="1"), config_map("d")])
    assert outcomes(report) == {"c": Outcome.REFUSED, "d": Outcome.CREATED}
    assert report.results[0].error.startswith("exists already and is managed by helm;")
    assert report.results[0].code == FOREIGN
    live = await client.get(CONFIG_MAPS, "c", namespace)
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {"helm"}


async def test_an_object_of_an_adopted_manager_is_taken_over(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("c", namespace, a="1"), manager="helm")
    objects = make_set(client, namespace, refuse_foreign=True, adopted_managers=frozenset({"helm"}))
    assert (await apply(objects, [config_map("c", a="2")])).ok
    assert (await client.get(CONFIG_MAPS, "c", namespace))["metadata"]["labels"] == {LABEL: namespace}


async def test_an_object_that_lost_its_label_is_still_the_set_s(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace, refuse_foreign=True)
    await apply(objects, [config_map("c", a="1"), config_map("d")])
    for name in ("c", "d"):
        await client.patch(CONFIG_MAPS, name, namespace, {"metadata": {"labels": None}}, manager="other-client")
    report = await objects.converge([config_map("c", a="1")])
    assert report.ok
    assert (await client.get(CONFIG_MAPS, "c", namespace))["metadata"]["labels"] == {LABEL: namespace}
    assert prune_outcomes(report.prune) == {"d": "removed"}


async def test_removals_are_pruned_without_an_inventory_only_if_they_carry_the_label(
    client: Client, namespace: str
) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map(name) for name in ("a", "b", "c")])
    await client.delete(CONFIG_MAPS, INVENTORY, namespace)
    await client.create(CONFIG_MAPS, config_map("theirs", namespace), manager="helm")
    removals = {ref(namespace, name) for name in ("b", "theirs", "absent")}
    report = await objects.converge([config_map("a")], removals=removals)
    assert prune_outcomes(report.prune) == {"absent": "absent", "b": "removed", "theirs": "foreign"}
    assert await exists(client, CONFIG_MAPS, "c", namespace)  # neither listed nor to be removed
    assert await exists(client, CONFIG_MAPS, "theirs", namespace)
    assert {each.name for each in await objects.inventory()} == {"a"}


async def test_a_kept_object_is_neither_applied_nor_pruned(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a"), config_map("b")])
    kept = await objects.converge([config_map("a", x="1")], kept={ref(namespace, "b")})
    assert outcomes(kept.apply) == {"a": Outcome.CHANGED}
    assert not kept.prune.results
    assert {each.name for each in await objects.inventory()} == {"a", "b"}
    assert prune_outcomes((await objects.converge([config_map("a", x="1")])).prune) == {"b": "removed"}


async def test_first_objects_are_applied_before_their_stage_and_block_it(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    await client.create(CONFIG_MAPS, config_map("z", namespace), manager="helm")
    objects = make_set(client, namespace, refuse_foreign=True)
    report = await objects.converge([config_map("a"), config_map("z")], first=({ref(namespace, "z")},))
    assert [(each.ref.name, each.outcome) for each in report.apply.results] == [
        ("z", Outcome.REFUSED),
        ("a", Outcome.SKIPPED),
    ]
    assert not [write for write in client.writes if write.startswith("PATCH") and "/a?" in write]


async def test_drift_is_found_without_a_write(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("c", a="1"), config_map("d")])
    await client.patch(CONFIG_MAPS, "c", namespace, {"data": {"a": "2"}}, manager="other-client")
    await client.delete(CONFIG_MAPS, "d", namespace)
    before = await objects.inventory()
    report = await objects.find_drift([config_map("c", a="1"), config_map("d"), config_map("new")])
    assert {(each.ref.name, each.deleted) for each in report.objects} == {("c", False), ("d", True)}
    field = report.objects[0].fields[0]
    assert (field.difference.path, field.managers) == ("data.a", ("other-client",))
    assert await objects.inventory() == before
    assert (await client.get(CONFIG_MAPS, "c", namespace))["data"] == {"a": "2"}


async def test_a_rehearsed_set_is_written_as_a_whole_or_not_at_all(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace, refuse_foreign=True)
    await apply(objects, [config_map("old")])
    await client.create(CONFIG_MAPS, config_map("theirs", namespace), manager="helm")
    before = await objects.inventory()
    report = await objects.converge([config_map("a"), config_map("theirs")], rehearse=True)
    assert outcomes(report.apply) == {"a": Outcome.SKIPPED, "theirs": Outcome.REFUSED}
    assert prune_outcomes(report.prune) == {"old": "skipped"}
    assert not await exists(client, CONFIG_MAPS, "a", namespace)
    assert await objects.inventory() == before
    assert (await objects.converge([config_map("a"), config_map("b")], rehearse=True)).ok


async def test_repairs_do_not_wait_for_each_other(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace, refuse_foreign=True)
    manifests = [config_map("a", x="1"), config_map("b")]
    await apply(objects, manifests)
    await client.delete(CONFIG_MAPS, "b", namespace)
    await client.create(CONFIG_MAPS, config_map("b", namespace), manager="helm")
    await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"x": "2"}}, manager="other-client")
    report = await objects.converge(manifests, rehearse=True)
    assert outcomes(report.apply) == {"a": Outcome.CHANGED, "b": Outcome.REFUSED}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1"}


async def test_results_are_reported_if_the_inventory_cannot_be_written_at_last(
    faults: FaultyApi, transport: Transport, namespace: str
) -> None:
    client = Client(transport, faults.access, Limits(attempts=1))
    objects = make_set(client, namespace)
    faults.answer(500, which=lambda request: request.method == "PUT" and request.path.endswith(f"/{INVENTORY}"))
    error = await error_of(objects.converge([config_map("a")]))
    assert isinstance(error, UnrecordedError)
    assert outcomes(error.apply) == {"a": Outcome.CREATED}
    assert (await objects.converge([config_map("a")])).ok


async def test_objects_that_others_may_refer_to_settle_only_if_they_are_new(client: Client, namespace: str) -> None:
    clock = VirtualClock()
    objects = make_set(client, namespace, clock=clock, settle_s=0.1)

    async def is_pausing() -> bool:
        return clock.sleepers == 1

    running = asyncio.create_task(objects.converge([config_map("c", a="1"), deployment("d")]))
    await until(is_pausing)
    assert await exists(client, CONFIG_MAPS, "c", namespace)
    assert not await exists(client, DEPLOYMENTS, "d", namespace)
    await clock.advance(0.1)
    assert outcomes((await running).apply) == {"c": Outcome.CREATED, "d": Outcome.CREATED}
    # A clock that nobody moves would hold a pause for ever.
    report = await objects.converge([config_map("c", a="2"), deployment("d", replicas=2)])
    assert outcomes(report.apply) == {"c": Outcome.CHANGED, "d": Outcome.CHANGED}
