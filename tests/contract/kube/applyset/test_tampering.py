"""Clients that tamper with the inventory or race with the set cannot make it prune or own foreign objects."""

import json
from collections.abc import Awaitable, Callable

import pytest

from governor.errors import Kind
from governor.kube.applyset import Entry, IgnoredFields, Outcome, PruneOutcome
from governor.kube.applyset.inventory import Inventory, checksum
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEFINITIONS,
    DEPLOYMENTS,
    INVENTORY,
    LABEL,
    MANAGER,
    NAMESPACES,
    PREFIX,
    SECRETS,
    RecordingClient,
    apply,
    config_map,
    custom,
    definition,
    deployment,
    error_of,
    exists,
    kind_of,
    make_set,
    namespace_of,
    outcomes,
    prune,
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of


async def inject(client: Client, namespace: str, *entries: Entry) -> None:
    """Add entries to the inventory with valid digests."""
    inventory = Inventory(client, Owner(namespace, namespace, INVENTORY), Settings(MANAGER, PREFIX))
    snapshot = await inventory.read()
    await inventory.write(snapshot, {**snapshot.entries, **{entry.ref: entry for entry in entries}})


async def entry_of(client: Client, resource: ApiResource, name: str, namespace: str = "") -> Entry:
    live = await client.get(resource, name, namespace)
    return Entry(ref_of({"apiVersion": resource.api_version, "kind": resource.kind, **live}), live["metadata"]["uid"])


async def test_injected_entries_prune_nothing(client: Client, namespace: str) -> None:
    other = f"{namespace}-other"
    await client.create(NAMESPACES, namespace_of(other), manager="other-client")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": other}}
    await client.create(SECRETS, secret, manager="other-client")
    rival = make_set(client, other)
    await apply(rival, [config_map("rival")])
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a")])
    await inject(
        client,
        namespace,
        await entry_of(client, SECRETS, "s", other),
        await entry_of(client, CONFIG_MAPS, "rival", other),
        await entry_of(client, NAMESPACES, other),
        await entry_of(client, NAMESPACES, "kube-system"),
        await entry_of(client, CONFIG_MAPS, INVENTORY, other),
        Entry(ObjectRef("", "ConfigMap", other, "no-uid")),
    )
    report = await prune(objects, [config_map("a")])
    assert report.counts() == {PruneOutcome.FOREIGN: 5, PruneOutcome.ABSENT: 1}
    assert await exists(client, SECRETS, "s", other)
    assert await exists(client, CONFIG_MAPS, "rival", other)
    assert await exists(client, NAMESPACES, other)
    assert await exists(client, NAMESPACES, "kube-system")
    assert len(await rival.inventory()) == 1


async def test_entries_outside_the_allowed_namespaces_are_not_read(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    other = f"{namespace}-other"
    await client.create(NAMESPACES, namespace_of(other), manager="other-client")
    ours = config_map("x", other)
    ours["metadata"]["labels"] = {LABEL: namespace}  # even with our label
    await client.create(CONFIG_MAPS, ours, manager="other-client")
    objects = make_set(client, namespace, allowed_namespaces=frozenset({namespace}))
    await apply(objects, [config_map("a")])
    injected = [await entry_of(client, CONFIG_MAPS, "x", other), await entry_of(client, NAMESPACES, other)]
    await inject(client, namespace, *injected)
    client.sent.clear()
    report = await prune(objects, [config_map("a")])
    assert prune_outcomes(report) == {"x": "refused", other: "refused"}
    assert all(f"/{other}" not in request.path for request in client.sent)
    assert await exists(client, CONFIG_MAPS, "x", other)


async def test_entries_with_names_that_change_the_path_are_damage(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    for name, other in (("..", namespace), ("a/../../x", namespace), ("a", "..")):
        await apply(objects, [config_map("a")])
        await inject(client, namespace, Entry(ObjectRef("", "ConfigMap", other, name)))
        error = await error_of(objects.delete_all())
        assert (error.kind, error.code) == (Kind.PRECONDITION, "inventory-damaged")
        await client.delete(CONFIG_MAPS, INVENTORY, namespace)
    assert await exists(client, CONFIG_MAPS, "a", namespace)


class RacingClient:
    """Performs an action just before the first request with a given method and path."""

    def __init__(self, method: str, path: str, action: Callable[[], Awaitable[object]]) -> None:
        self._method, self._path, self._action = method, path, action
        self.done = False

    async def __call__(self, request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if not self.done and (request.method, request.path) == (self._method, self._path):
            self.done = True
            await self._action()
        return await send(request)


async def test_an_object_created_concurrently_is_shared_and_never_deleted(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    mine = RecordingClient(transport, admin_of(api))

    async def create() -> None:
        await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="other-client")

    mine.intercept = RacingClient("PATCH", CONFIG_MAPS.path(namespace, "a"), create)
    objects = make_set(mine, namespace)
    report = await apply(objects, [config_map("a", ours="1")])
    assert report.ok
    assert report.results[0].shared
    assert prune_outcomes(await objects.delete_all()) == {"a": "released"}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"theirs": "1"}


@pytest.mark.parametrize("crashes", [False, True])
async def test_an_object_replaced_concurrently_is_not_owned(
    api: ControlPlane, client: Client, transport: Transport, namespace: str, crashes: bool
) -> None:
    mine = RecordingClient(transport, admin_of(api))
    objects = make_set(mine, namespace)
    await apply(objects, [config_map("a", x="1")])

    async def replace() -> None:
        await client.delete(CONFIG_MAPS, "a", namespace)
        await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="other-client")
        if crashes:
            raise ConnectionError("crashed")

    mine.intercept = RacingClient("PATCH", CONFIG_MAPS.path(namespace, "a"), replace)
    if crashes:
        with pytest.raises(ConnectionError):
            await apply(objects, [config_map("a", x="2")])
        assert prune_outcomes(await objects.delete_all()) == {"a": "foreign"}
    else:
        report = await apply(objects, [config_map("a", x="2")])
        assert [(result.outcome, result.shared) for result in report.results] == [(Outcome.CHANGED, True)]
        assert prune_outcomes(await objects.delete_all()) == {"a": "released"}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"theirs": "1"}


async def test_an_object_replaced_between_read_and_deletion_stays(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    mine = RecordingClient(transport, admin_of(api))
    objects = make_set(mine, namespace)
    await apply(objects, [config_map("a", x="1")])

    async def replace() -> None:
        await client.delete(CONFIG_MAPS, "a", namespace)
        await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="other-client")

    mine.intercept = RacingClient("DELETE", CONFIG_MAPS.path(namespace, "a"), replace)
    assert prune_outcomes(await objects.delete_all()) == {"a": "foreign"}
    assert await exists(client, CONFIG_MAPS, "a", namespace)


async def test_an_adoption_is_retried_after_a_concurrent_change(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    await client.create(CONFIG_MAPS, config_map("a", namespace, x="1", y="1"), manager="helm")
    recording = RecordingClient(transport, admin_of(api))
    patches = 0

    async def change_before_second_patch(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        nonlocal patches
        patches += request.method == "PATCH"
        if patches == 2 and request.content_type == "application/json-patch+json":
            await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"theirs": "1"}}, manager="other-client")
        return await send(request)

    recording.intercept = change_before_second_patch
    report = await apply(make_set(recording, namespace, adopted_managers=frozenset({"helm"})), [config_map("a", x="1")])
    assert outcomes(report) == {"a": Outcome.CHANGED}
    live = await client.get(CONFIG_MAPS, "a", namespace)
    assert live["data"] == {"x": "1", "theirs": "1"}
    assert {entry["manager"] for entry in live["metadata"]["managedFields"]} == {MANAGER, "other-client"}


async def test_an_ignored_field_that_changes_between_read_and_write_keeps_its_value(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    """An autoscaler's replicas survive a forced apply."""
    mine = RecordingClient(transport, admin_of(api))
    ignored = (IgnoredFields(("spec.replicas",), kind="Deployment"),)
    objects = make_set(mine, namespace, ignored_fields=ignored, force_conflicts=True)
    await objects.converge([deployment("d", 2)])

    async def scale() -> None:
        await client.patch(DEPLOYMENTS, "d", namespace, {"spec": {"replicas": 7}}, manager="autoscaler")

    mine.intercept = RacingClient("PATCH", DEPLOYMENTS.path(namespace, "d"), scale)
    report = await objects.converge([deployment("d", 3, minReadySeconds=1)])
    assert outcomes(report.apply) == {"d": Outcome.CHANGED}
    spec = (await client.get(DEPLOYMENTS, "d", namespace))["spec"]
    assert (spec["replicas"], spec["minReadySeconds"]) == (7, 1)


async def test_names_cannot_escape_their_path_segment(client: Client, namespace: str) -> None:
    for name in (".", "..", "a/b", "a%2fb", "a\nb", ""):
        error = await error_of(apply(make_set(client, namespace), [config_map(name)]))
        assert error.kind is Kind.INVALID
    for other in ("..", "a/b", "UPPER", "a b"):
        error = await error_of(apply(make_set(client, namespace), [config_map("a", other)]))
        assert error.kind is Kind.INVALID
    weird = config_map("a")
    weird["apiVersion"] = "../../v1"
    assert (await error_of(apply(make_set(client, namespace), [weird]))).kind is Kind.INVALID


async def test_a_manifest_cannot_set_the_owner_label(client: Client, namespace: str) -> None:
    manifest = config_map("a")
    manifest["metadata"]["labels"] = {LABEL: "another"}
    error = await error_of(apply(make_set(client, namespace), [manifest]))
    assert "is set by the apply set" in str(error)


async def test_a_definition_with_objects_of_another_version_stays(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    defined = definition("Thing", group)
    objects = make_set(client, namespace)
    await apply(objects, [defined])
    newer = json.loads(json.dumps(defined))
    newer["spec"]["versions"] = [
        {**defined["spec"]["versions"][0], "storage": False},
        {**defined["spec"]["versions"][0], "name": "v2"},
    ]
    await apply(objects, [newer])
    theirs = custom("Thing", group, "theirs")
    theirs["metadata"]["namespace"] = namespace
    await client.create(kind_of(defined), theirs, manager="other-client")
    assert prune_outcomes(await objects.delete_all()) == {f"things.{group}": "held"}
    assert await exists(client, DEFINITIONS, f"things.{group}")


async def test_a_namespace_whose_contents_cannot_be_listed_stays(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    inner = f"{namespace}-inner"
    objects = make_set(client, namespace)
    await apply(objects, [namespace_of(inner)])

    async def broken(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.path.endswith(f"/namespaces/{inner}/secrets"):
            request = Request("GET", f"/api/v1/namespaces/{inner}/secrets/x/unknown")
        return await send(request)

    client.intercept = broken
    report = await objects.delete_all()
    assert prune_outcomes(report) == {inner: "held"}
    assert "its contents cannot be listed" in report.results[0].reason
    assert await exists(client, NAMESPACES, inner)


@pytest.mark.parametrize("labelled", [True, False])
async def test_an_entry_with_a_wrong_scope_is_rejected(client: Client, namespace: str, *, labelled: bool) -> None:
    """It would pass as an object in an allowed namespace, but refer to a cluster-scoped one."""
    victim = namespace_of(f"{namespace}-victim")
    victim["metadata"]["labels"] = {"guard": "on"} | ({LABEL: namespace} if labelled else {})
    await client.apply(NAMESPACES, victim, manager=MANAGER)
    objects = make_set(client, namespace, allowed_namespaces=frozenset({namespace}))
    await apply(objects, [config_map("a")])
    name = victim["metadata"]["name"]
    await inject(
        client,
        namespace,
        Entry(ObjectRef("", "Namespace", namespace, name)),
        Entry(ObjectRef("", "ConfigMap", "", "a")),
    )
    report = await prune(objects, [config_map("a")])
    assert prune_outcomes(report) == {name: "refused", "a": "refused"}
    live = await client.get(NAMESPACES, name)
    assert live["metadata"]["labels"]["guard"] == "on"
    assert "deletionTimestamp" not in live["metadata"]
    assert await exists(client, CONFIG_MAPS, "a", namespace)


@pytest.mark.parametrize("missing", ["entries", "claim"])
async def test_a_sealed_inventory_with_a_missing_part_is_damaged(client: Client, namespace: str, missing: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a")])
    head = await client.get(CONFIG_MAPS, INVENTORY, namespace)
    data = {key: value for key, value in head["data"].items() if key not in (missing, "digest")}
    head["data"] = data | {"digest": checksum(data)}
    await client.replace(CONFIG_MAPS, head, manager="intruder")
    error = await error_of(prune(objects, [config_map("b")]))
    assert (error.kind, error.code) == (Kind.PRECONDITION, "inventory-damaged")
    assert await exists(client, CONFIG_MAPS, "a", namespace)


async def test_an_inventory_that_names_a_thousand_parts_costs_few_requests(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = RecordingClient(transport, admin_of(api))
    parts = ",".join(f'["{INVENTORY}.x{number}","{number}"]' for number in range(1000))
    data = {"format": "v1", "owner": namespace, "entries": "[]", "chunks": f"[{parts}]"}
    await client.create(
        CONFIG_MAPS, config_map(INVENTORY, namespace, **data, digest=checksum(data)), manager="intruder"
    )
    client.sent.clear()
    error = await error_of(make_set(client, namespace).inventory())
    assert error.code == "inventory-damaged"
    assert len(client.sent) < 10


async def test_an_object_that_is_deleted_between_read_and_write_is_not_reported_as_applied(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    recording = RecordingClient(transport, admin_of(api))

    def manifest(value: str) -> Object:
        held = config_map("a", x=value)
        held["metadata"]["finalizers"] = ["example.com/wait"]
        return held

    objects = make_set(recording, namespace)
    await objects.converge([manifest("1")])

    async def delete_before_apply(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.method == "PATCH":
            recording.intercept = None
            await recording.delete(CONFIG_MAPS, "a", namespace)
        return await send(request)

    recording.intercept = delete_before_apply
    report = await objects.converge([manifest("2")])
    assert outcomes(report.apply) == {"a": Outcome.TERMINATING}
    assert report.pending
