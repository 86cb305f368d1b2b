"""Sources of keys outside the cluster of a controller, on a real API server."""

import asyncio
from collections.abc import Callable

import pytest

from governor.kube.client import Client, Transport
from governor.kube.controller import NamespacedName
from governor.kube.lease import LEASES
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import CONFIG_MAPS, config_map
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.controller.bed import (
    NAME,
    WITHIN_S,
    Boxes,
    boxes,
    make_operator,
    operating,
    record_names,
    until_true,
)

Add = Callable[[NamespacedName], None]


class Source:
    """A source that adds names when it starts and whenever a test does."""

    def __init__(self, *first: NamespacedName) -> None:
        self._first = first
        self.add: Add | None = None
        self.started = 0
        self.ended = 0

    async def run(self, add: Add) -> None:
        self.started += 1
        self.add = add
        for name in self._first:
            add(name)
        try:
            await asyncio.Event().wait()
        finally:
            self.add = None
            self.ended += 1


async def test_a_source_reconciles_known_objects_and_no_others(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user, runs = Boxes(client, namespace), list[str]()
    await user.create("a")
    await client.create(CONFIG_MAPS, config_map("no-box", namespace), manager="user")
    names = [NamespacedName(namespace, name) for name in ("absent", "no-box", "a")]
    source = Source(*names)  # before the first reconcile
    controller = boxes(record_names(runs), finalize=record_names(runs), workers=1).follows(source.run)
    async with operating(transport, admin_of(api), namespace, controller):
        await until_true(lambda: runs == ["a"])
        assert source.add is not None
        for name in names:
            source.add(name)
        await until_true(lambda: runs == ["a", "a"])
    assert (source.started, source.ended) == (1, 1)


async def test_a_source_starts_when_the_caches_are_complete(
    client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    await Boxes(client, namespace).create("a")
    is_denied = True
    faults.answer(403, times=1000, which=lambda request: is_denied and "boxes.example/owner" in request.query.values())
    source = Source()
    async with operating(transport, faults.access, namespace, boxes().follows(source.run)) as running:
        await until_true(lambda: "its body is empty" in running.operator.not_ready())
        assert source.started == 0
        is_denied = False
        await until_true(lambda: source.started == 1)
        assert running.operator.not_ready() == ""


async def test_a_source_ends_with_its_term_and_starts_with_the_next(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    async def edit_lease(**spec: object) -> None:
        await client.patch(LEASES, NAME, namespace, {"spec": spec}, manager="user")

    source = Source()
    async with operating(transport, admin_of(api), namespace, boxes().follows(source.run)):
        await until_true(lambda: source.started == 1)
        await edit_lease(holderIdentity="another", leaseDurationSeconds=3600)
        await until_true(lambda: source.ended == 1)
        await edit_lease(holderIdentity=None, leaseDurationSeconds=1)
        await until_true(lambda: source.started == 2)
    assert source.ended == 2


async def test_a_source_that_fails_ends_the_operator_with_its_error(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    async def fail(_: Add) -> None:
        raise ZeroDivisionError

    other = Source()
    operator = make_operator(transport, admin_of(api), namespace, boxes().follows(other.run).follows(fail))
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(operator.run(), WITHIN_S)
    assert caught.value.subgroup(ZeroDivisionError) is not None
    assert (other.started, other.ended) == (1, 1)


async def test_a_source_that_returns_does_not_stop_its_controller(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    async def return_at_once(_: Add) -> None:
        return

    user = Boxes(client, namespace)
    async with operating(transport, admin_of(api), namespace, boxes().follows(return_at_once)):
        await user.create("a", size="1")
        await user.has_child("a", "1")
