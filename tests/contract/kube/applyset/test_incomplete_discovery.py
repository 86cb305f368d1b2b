"""A starting API server with incomplete discovery: no object is lost from the inventory and no namespace deleted."""

import msgspec

from governor.errors import Kind
from governor.kube.client import Client, Request
from tests.contract.kube.applyset.bed import (
    NAMESPACES,
    apply,
    config_map,
    custom,
    definition,
    error_of,
    exists,
    kind_of,
    make_set,
    namespace_of,
    prune,
    prune_outcomes,
)
from tests.contract.kube.bed import FaultyApi


async def simulate_start(faults: FaultyApi, group: str) -> None:
    """Respond as a server in its first second: not ready, and without the kinds of its definitions."""
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = msgspec.json.decode(await faults.client.send(Request("GET", "/apis", accept=accept)))
    groups["items"] = [each for each in groups["items"] if each["metadata"]["name"] != group]
    faults.answer(200, times=100, which=lambda request: request.path == "/apis", content=msgspec.json.encode(groups))
    faults.answer(500, times=100, which=lambda request: request.path == "/readyz", content=b"[-]poststarthook failed")


async def test_a_starting_server_causes_no_lost_object_and_no_deleted_namespace(
    client: Client, faults: FaultyApi, namespace: str
) -> None:
    group = f"{namespace}.example.dev"
    thing, space = definition("Thing", group), namespace_of(f"{namespace}-shared")
    await apply(make_set(client, namespace, owner="definitions", name="definitions"), [thing])
    assert (await apply(make_set(client, namespace), [custom("Thing", group, "ours"), space])).ok
    theirs = custom("Thing", group, "theirs")
    theirs["metadata"]["namespace"] = space["metadata"]["name"]
    await client.apply(kind_of(thing), theirs, manager="other")

    await simulate_start(faults, group)
    starting = make_set(faults.client, namespace)
    report = await prune(starting, [config_map("a")])
    assert prune_outcomes(report)["ours"] == "failed"
    only_space = make_set(faults.client, namespace, owner="space", name="space")
    assert (await apply(only_space, [namespace_of(f"{namespace}-second")])).ok
    removal = await only_space.delete_all()

    assert prune_outcomes(removal) == {f"{namespace}-second": "held"}
    assert "cannot be listed" in removal.results[0].reason
    assert {ref.name for ref in await make_set(client, namespace).inventory()} >= {"ours", space["metadata"]["name"]}
    assert await exists(client, NAMESPACES, space["metadata"]["name"])
    assert await exists(client, NAMESPACES, f"{namespace}-second")


async def test_a_kind_that_a_starting_server_does_not_serve_yet_is_no_manifest_error(
    client: Client, faults: FaultyApi, namespace: str
) -> None:
    group = f"{namespace}.example.dev"
    await apply(make_set(client, namespace), [definition("Thing", group)])
    await simulate_start(faults, group)
    error = await error_of(apply(make_set(faults.client, namespace, name="other"), [custom("Thing", group, "one")]))
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "kube-not-ready")
