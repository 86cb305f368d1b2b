"""Leadership, terms, start and stop of operators on a real API server."""

import asyncio

from governor.kube.client import Client, Transport
from governor.kube.controller import Context, Controller
from governor.kube.lease import LEASES
from governor.process.reconcile.reconciler import Done, Outcome
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import DEFINITIONS, custom, definition, kind_of
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.controller.bed import NAME, Box, Boxes, boxes, keep_child, operating, record_names, until_true


async def test_only_one_of_two_operators_works_and_the_other_takes_over(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)
    async with operating(transport, admin_of(api), namespace, boxes()) as first:
        await until_true(lambda: first.operator.is_leader)
        async with operating(transport, admin_of(api), namespace, boxes()) as second:
            await user.create("a", size="1")
            await user.has_child("a", "1")
            assert not second.operator.is_leader
            assert second.operator.not_ready() == ""
            assert second.runs("boxes") == 0
            await first.stop()
            await until_true(lambda: second.operator.is_leader)
            await user.change("a", size="2")
            await user.has_child("a", "2")
            await until_true(lambda: second.runs("boxes") > 0)


async def test_a_lost_lease_stops_the_work_and_the_next_term_starts_fresh(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)

    async def edit_lease(**spec: object) -> None:
        await client.patch(LEASES, NAME, namespace, {"spec": spec}, manager="user")

    async with operating(transport, admin_of(api), namespace, boxes()) as running:
        for name in ("kept", "deleted"):
            await user.create(name, size="1")
            await user.has_child(name, "1")
        await edit_lease(holderIdentity="another", leaseDurationSeconds=3600)
        await until_true(lambda: not running.operator.is_leader)
        before = running.runs("boxes")
        await user.delete("kept-child")
        await user.delete("deleted")
        assert running.runs("boxes") == before
        await edit_lease(holderIdentity=None, leaseDurationSeconds=1)
        await user.has_child("kept", "1")
        await user.has_no_child("deleted")


async def test_a_reconcile_that_raises_is_retried_and_does_not_stop_others(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = Boxes(client, namespace)
    failures: list[str] = []

    async def reconcile(context: Context[Box]) -> Outcome:
        if context.key.name == "bad" and len(failures) < 3:
            failures.append(context.key.name)
            raise ZeroDivisionError
        return await keep_child(context)

    async with operating(transport, admin_of(api), namespace, boxes(reconcile)) as running:
        await user.create("bad", size="1")
        await user.create("good", size="1")
        await user.has_child("good", "1")
        await user.has_child("bad", "1")
        assert running.results("boxes", "error") == 3


async def test_a_stopped_operator_lets_running_reconciliations_finish_before_it_releases_the_lease(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    started, gate = asyncio.Event(), asyncio.Event()
    finished: list[bool] = []

    async def reconcile(_: Context[Box]) -> Outcome:
        started.set()
        await gate.wait()
        lease = await client.get(LEASES, NAME, namespace)
        finished.append(bool(lease["spec"].get("holderIdentity")))
        return Done()

    async with operating(transport, admin_of(api), namespace, boxes(reconcile)) as running:
        await Boxes(client, namespace).create("a")
        await started.wait()
        stopping = asyncio.create_task(running.stop())
        await until_true(lambda: running.is_stopped)
        assert not stopping.done()
        gate.set()
        await stopping
        assert finished == [True]
        lease = await client.get(LEASES, NAME, namespace)
        assert not lease["spec"].get("holderIdentity")


async def test_controllers_of_one_kind_share_a_watch(
    client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    user = Boxes(client, namespace)
    seen: dict[str, set[str]] = {"one": set(), "two": set()}

    def controller(name: str) -> Controller[Box]:
        async def reconcile(context: Context[Box]) -> Outcome:
            seen[name].add(context.key.name)
            return Done()

        return boxes(reconcile, name=name)

    async with operating(transport, faults.access, namespace, controller("one"), controller("two")):
        await user.create("a")
        await until_true(lambda: seen == {"one": {"a"}, "two": {"a"}})
    watches = [each.query["labelSelector"] for each in faults.requests if each.is_watch]
    assert sorted(watches) == ["box=yes", "one.example/owner", "two.example/owner"]


async def test_an_operator_waits_for_its_kinds_and_names_them(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    manifest = definition("Crate", f"{namespace}.example")
    seen: list[str] = []
    kind = kind_of(manifest)
    controller = boxes(record_names(seen), labels="")
    controller.kind = (kind.group, kind.version, kind.kind)
    async with operating(transport, admin_of(api), namespace, controller) as running:
        await until_true(lambda: "Crate" in running.operator.not_ready())
        await client.apply(DEFINITIONS, manifest, manager="user")
        await until_true(lambda: running.operator.not_ready() == "")
        crate = custom("Crate", kind.group, "a")
        crate["metadata"]["namespace"] = namespace
        await client.create(kind, crate, manager="user")
        await until_true(lambda: seen == ["a"])
