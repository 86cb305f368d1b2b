"""Operators whose connections are cut, and whose API server restarts."""

from governor.kube.client import Client, Transport
from testbed.pytest_plugin import StartControlPlane
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.controller.bed import Boxes, boxes, operating, until_true
from tests.contract.kube.reflector.bed import eventually


async def test_changes_while_the_watch_is_cut_are_reconciled(
    client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    user = Boxes(client, namespace)
    async with operating(transport, faults.access, namespace, boxes()):
        for name in ("changed", "healed", "deleted"):
            await user.create(name, size="1")
            await user.has_child(name, "1")
        faults.unavailable = True
        faults.cut()
        await user.change("changed", size="2")
        await user.delete("healed-child")
        await user.delete("deleted")
        faults.unavailable = False
        await user.has_child("changed", "2")
        await user.has_child("healed", "1")
        await user.has_no_child("deleted")


async def test_a_restart_of_the_api_server_is_survived_by_the_same_operator(
    start_control_plane: StartControlPlane, transport: Transport
) -> None:
    plane = await start_control_plane()
    user = Boxes(Client(transport, admin_of(plane)), "default")
    async with operating(transport, admin_of(plane), "default", boxes()) as running:
        await user.create("a", size="1")
        await user.has_child("a", "1")
        await plane.api.kill()
        await plane.api.start()
        await eventually(lambda: user.change("a", size="2"))
        await eventually(lambda: user.has_child("a", "2"))
        await until_true(lambda: running.operator.is_leader)
