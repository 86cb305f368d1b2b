"""Hostile inventories and starting servers: no object of another owner is changed and none is lost track of."""

import msgspec
import pytest

from governor.errors import Kind
from governor.kube.applyset import Entry
from governor.kube.applyset.inventory import FORMAT, checksum
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import ObjectRef
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    INVENTORY,
    LABEL,
    MANAGER,
    NAMESPACES,
    RecordingClient,
    config_map,
    custom,
    definition,
    error_of,
    exists,
    kind_of,
    make_set,
    namespace_of,
    prune_outcomes,
)
from tests.contract.kube.applyset.test_tampering import inject
from tests.contract.kube.bed import FaultyApi, admin_of


@pytest.mark.parametrize("labelled", [True, False])
async def test_an_entry_with_a_wrong_scope_is_rejected(client: Client, namespace: str, *, labelled: bool) -> None:
    """It would pass as an object in an allowed namespace, but refer to a cluster-scoped one."""
    victim = namespace_of(f"{namespace}-victim")
    victim["metadata"]["labels"] = {"guard": "on"} | ({LABEL: namespace} if labelled else {})
    await client.apply(NAMESPACES, victim, manager=MANAGER)
    objects = make_set(client, namespace, allowed_namespaces=frozenset({namespace}))
    await objects.apply([config_map("a")])
    name = victim["metadata"]["name"]
    await inject(
        client,
        namespace,
        Entry(ObjectRef("", "Namespace", namespace, name)),
        Entry(ObjectRef("", "ConfigMap", "", "a")),
    )
    report = await objects.prune([config_map("a")])
    assert prune_outcomes(report) == {name: "refused", "a": "refused"}
    live = await client.get(NAMESPACES, name)
    assert live["metadata"]["labels"]["guard"] == "on"
    assert "deletionTimestamp" not in live["metadata"]
    assert await exists(client, CONFIG_MAPS, "a", namespace)


@pytest.mark.parametrize("missing", ["entries", "chunks"])
async def test_a_sealed_inventory_with_a_missing_part_is_damaged(client: Client, namespace: str, missing: str) -> None:
    objects = make_set(client, namespace)
    await objects.apply([config_map("a")])
    head = await client.get(CONFIG_MAPS, INVENTORY, namespace)
    data = {key: value for key, value in head["data"].items() if key not in (missing, "digest")}
    head["data"] = data | {"digest": checksum(data)}
    await client.replace(CONFIG_MAPS, head, manager="intruder")
    error = await error_of(objects.prune([config_map("b")]))
    assert (error.kind, error.code) == (Kind.PRECONDITION, "inventory-damaged")
    assert await exists(client, CONFIG_MAPS, "a", namespace)


async def test_an_inventory_that_names_a_thousand_parts_costs_few_requests(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    parts = ",".join(f'["{INVENTORY}.x{number}","{number}"]' for number in range(1000))
    data = {"format": FORMAT, "owner": namespace, "entries": "[]", "chunks": f"[{parts}]"}
    await client.create(
        CONFIG_MAPS, config_map(INVENTORY, namespace, **data, digest=checksum(data)), manager="intruder"
    )
    client.sent.clear()
    error = await error_of(make_set(client, namespace).inventory())
    assert error.code == "inventory-damaged"
    assert len(client.sent) < 10


async def simulate_start(faults: FaultyApi, group: str) -> None:
    """Respond as a server in its first second: not ready, and without the kinds of its definitions."""
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = msgspec.json.decode(await faults.client.send(Request("GET", "/apis", accept=accept)))
    groups["items"] = [each for each in groups["items"] if each["metadata"]["name"] != group]
    faults.answer(200, times=100, which=lambda asked: asked.path == "/apis", content=msgspec.json.encode(groups))
    faults.answer(500, times=100, which=lambda asked: asked.path == "/readyz", content=b"[-]poststarthook failed")


async def test_a_starting_server_causes_no_lost_object_and_no_deleted_namespace(
    client: Client, faults: FaultyApi, namespace: str
) -> None:
    group = f"{namespace}.example.dev"
    thing, space = definition("Thing", group), namespace_of(f"{namespace}-shared")
    await make_set(client, namespace, owner="definitions", name="definitions").apply([thing])
    assert (await make_set(client, namespace).apply([custom("Thing", group, "ours"), space])).ok
    theirs = custom("Thing", group, "theirs")
    theirs["metadata"]["namespace"] = space["metadata"]["name"]
    await client.apply(kind_of(thing), theirs, manager="other")

    await simulate_start(faults, group)
    starting = make_set(faults.client, namespace)
    report = await starting.prune([config_map("a")])
    assert prune_outcomes(report)["ours"] == "failed"
    only_space = make_set(faults.client, namespace, owner="space", name="space")
    assert (await only_space.apply([namespace_of(f"{namespace}-second")])).ok
    removal = await only_space.delete_all()

    assert prune_outcomes(removal) == {f"{namespace}-second": "held"}
    assert "cannot be listed" in removal.results[0].reason
    assert {ref.name for ref in await make_set(client, namespace).inventory()} == {"ours", space["metadata"]["name"]}
    assert await exists(client, NAMESPACES, space["metadata"]["name"])
    assert await exists(client, NAMESPACES, f"{namespace}-second")


async def test_a_kind_that_a_starting_server_does_not_serve_yet_is_no_manifest_error(
    client: Client, faults: FaultyApi, namespace: str
) -> None:
    group = f"{namespace}.example.dev"
    await make_set(client, namespace).apply([definition("Thing", group)])
    await simulate_start(faults, group)
    error = await error_of(make_set(faults.client, namespace, name="other").apply([custom("Thing", group, "one")]))
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-not-ready")
