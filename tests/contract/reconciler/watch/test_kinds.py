"""Kinds that come and go: none of them stops the watch, blocks it, or costs requests while it is not served."""

import copy

import msgspec

from governor.kube.client import Client, Request, Transport
from governor.kube.objects import ApiResource
from governor.process.clock import VirtualClock
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEFINITIONS,
    SECRETS,
    config_map,
    custom,
    kind_of,
)
from tests.contract.kube.bed import FaultyApi
from tests.contract.kube.reflector.bed import eventually
from tests.contract.reconciler.definition_bed import remove
from tests.contract.reconciler.watch.bed import TargetBed, definition, secret

FORBIDDEN = msgspec.json.encode({"kind": "Status", "reason": "Forbidden", "message": "no secrets for you", "code": 403})
JSON = {"Content-Type": "application/json"}


def count(faults: FaultyApi, resource: ApiResource) -> int:
    """Return how many lists and watches of a kind there were."""
    return faults.count(lambda each: each.path == resource.path())


def is_discovery(request: ApiRequest) -> bool:
    return request.path == "/apis"


async def test_a_kind_whose_definition_vanishes_is_absent_until_it_is_served_again(
    target: TargetBed, control_plane: ControlPlane
) -> None:
    group = f"{target.namespace}.example"
    crd, widget = definition("Widget", group), custom("Widget", group, "a")
    kind, ref = kind_of(crd), target.ref(widget)
    clock = VirtualClock()
    async with Transport(clock) as transport, FaultyApi(control_plane, transport) as faults:
        await target.client.create(DEFINITIONS, crd, manager="tests")
        await eventually(lambda: target.apply("dapr", widget, config_map("a")))
        async with target.watching(faults.client, clock) as watched:
            watch = watched.watch
            assert watch.state(ref)
            watched.changes.clear()
            await remove(target.client, crd["metadata"]["name"])
            # The first report is that of the deleted object, the second that of the absent kind.
            await watched.until(lambda: watched.changes.count("dapr") > 1, clock)
            assert watch.state(ref) is None
            assert watch.is_known(ref)
            before, looks = count(faults, kind), faults.count(is_discovery)
            await watched.until(lambda: faults.count(is_discovery) > looks + 2, clock)
            assert count(faults, kind) == before
            watched.changes.clear()
            await target.client.patch(CONFIG_MAPS, "a", target.namespace, {"data": {"x": "1"}}, manager="tests")
            await watched.reports("dapr")
            await watched.synced()
            await target.client.create(DEFINITIONS, crd, manager="tests")
            await eventually(lambda: target.client.send(Request("GET", kind.path())))
            await eventually(lambda: target.apply("dapr", widget, config_map("a"), client=faults.client))
            await watched.until(lambda: watch.state(ref))
            assert count(faults, kind) > before


async def test_a_kind_that_is_not_served_does_not_block_the_others(target: TargetBed, client: Client) -> None:
    group = f"{target.namespace}.example"
    crd, widget = definition("Widget", group), custom("Widget", group, "a")
    await target.apply("dapr", crd, widget, config_map("a"))
    await remove(client, crd["metadata"]["name"])
    client.discovery.invalidate()
    async with target.watching() as watched:
        assert watched.watch.state(target.ref(widget)) is None
        assert watched.watch.is_known(target.ref(widget))
        assert watched.watch.state(target.ref(config_map("a")))
        assert watched.watch.problem == ""
        # The definition is one of the module's: when it is applied again, its kind is looked up at once.
        await target.apply("dapr", crd, widget, config_map("a"))
        await watched.until(lambda: watched.watch.state(target.ref(widget)))


async def test_a_kind_that_may_not_be_listed_does_not_block_the_others(target: TargetBed, faults: FaultyApi) -> None:
    await target.apply("dapr", config_map("a"), secret("a"))
    ref = target.ref(secret("a"))
    clock = VirtualClock()
    faults.answer(403, times=2, which=lambda each: each.path == SECRETS.path(), headers=JSON, content=FORBIDDEN)
    async with target.watching(faults.client, clock) as watched:
        watch = watched.watch
        assert watch.state(target.ref(config_map("a")))
        assert (watch.state(ref), watch.is_known(ref)) == (None, False)
        assert "no secrets for you" in watch.problem
        watched.changes.clear()
        # One report is that of the object, one that of its kind.
        await watched.until(lambda: watched.changes == ["dapr", "dapr"], clock)
        assert watch.is_known(ref)
        assert watch.state(ref)
        assert watch.problem == ""


async def test_a_kind_is_watched_while_it_is_named(target: TargetBed, faults: FaultyApi) -> None:
    await target.apply("dapr", config_map("a"))
    async with target.watching(faults.client) as watched:
        watch, ref = watched.watch, target.ref(secret("a"))
        assert not watch.is_known(ref)
        watch.follow([SECRETS])
        await watched.synced()
        assert (watch.is_known(ref), watch.state(ref)) == (True, None)
        await target.apply("dapr", config_map("a"), secret("a"))
        await target.apply("redis", secret("b"))
        await watched.until(lambda: watch.state(ref) and watch.inventory("redis"))
        await target.apply("dapr", config_map("a"))
        await watched.until(lambda: watch.state(ref) is None)
        assert watch.is_known(ref)
        await target.remove("redis")
        await watched.until(lambda: not watch.is_known(ref))
        assert watch.is_known(target.ref(config_map("a")))
        assert faults.count(lambda each: each.path == SECRETS.path() and not each.is_watch) == 1


async def test_a_kind_that_gains_a_status_is_read_as_one_that_counts_its_changes(target: TargetBed) -> None:
    group = f"{target.namespace}.example"
    crd, widget = definition("Widget", group, subresources={}), custom("Widget", group, "a")
    await target.apply("dapr", crd, widget)
    async with target.watching() as watched:
        state = watched.watch.state(target.ref(widget))
        assert state is not None
        assert state.seen().generation == 0
        changed = copy.deepcopy(crd)
        changed["spec"]["versions"][0]["subresources"] = {"status": {}}
        await target.apply("dapr", changed, widget)
        await watched.until(
            lambda: (now := watched.watch.state(target.ref(widget))) and now.seen().generation == now.generation
        )
