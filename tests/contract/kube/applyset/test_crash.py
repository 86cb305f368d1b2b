"""A program that dies at any request, before or after the server got it, orphans nothing and endangers nothing."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from governor.kube.applyset import ApplySet, inventory
from governor.kube.applyset.entries import PIECE_BYTES, pack
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import Object
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import CONFIG_MAPS, LABEL, Interposed, config_map, exists, make_set
from tests.contract.kube.bed import admin_of


class DiedError(Exception):
    """The program is no more."""


class Death:
    """Lets a number of requests through and then none, as if the program had died."""

    def __init__(self, after: int, *, answer_lost: bool) -> None:
        self.left = after
        self._answer_lost = answer_lost

    async def __call__(self, request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        self.left -= 1
        if self.left == 0 and self._answer_lost:
            await send(request)
        if self.left <= 0:
            raise DiedError
        return await send(request)


class Scene:
    """One set in its first state, beside objects of others, one of which it shares."""

    def __init__(self, client: Interposed, namespace: str, number: int) -> None:
        self.client = client
        self.namespace = namespace
        self.owner = f"{namespace}-{number}"
        self.prefix = f"s{number}"

    def manifest(self, name: str, **data: str) -> Object:
        return config_map(f"{self.prefix}-{name}", **data)

    def set_of(self, client: Client) -> ApplySet:
        return make_set(client, self.namespace, owner=self.owner, name=f"{self.prefix}-inventory", at_once=1)

    @property
    def first(self) -> list[Object]:
        return [self.manifest("gone", x="1"), self.manifest("stays", x="1"), self.manifest("deleted", x="1")]

    @property
    def second(self) -> list[Object]:
        # One changed, one that somebody deleted, one new, one that is somebody else's.
        return [
            self.manifest("stays", x="2"),
            self.manifest("deleted", x="2"),
            self.manifest("new", x="1"),
            self.manifest("theirs", ours="1"),
        ]

    async def prepare(self) -> None:
        theirs = self.manifest("theirs", theirs="1")
        theirs["metadata"]["namespace"] = self.namespace
        await self.client.create(CONFIG_MAPS, theirs, manager="somebody")
        await self.set_of(self.client).apply(self.first)
        await self.client.delete(CONFIG_MAPS, f"{self.prefix}-deleted", self.namespace)

    async def change(self, client: Client) -> None:
        objects = self.set_of(client)
        assert (await objects.apply(self.second)).ok
        assert (await objects.prune(self.second)).complete

    async def ours(self) -> set[str]:
        found = self.client.list(CONFIG_MAPS, self.namespace, labels=f"{LABEL}={self.owner}")
        return {each["metadata"]["name"] async for each in found}

    async def check(self) -> None:
        """Nothing of ours is unknown to the inventory, and what is somebody else's is as it was."""
        known = {ref.name for ref in await self.set_of(self.client).inventory()}
        assert await self.ours() <= known
        theirs = await self.client.get(CONFIG_MAPS, f"{self.prefix}-theirs", self.namespace)
        assert theirs["data"]["theirs"] == "1"
        assert LABEL not in theirs["metadata"].get("labels", {})


async def _die_at_every_request(
    scene_of: Callable[[int], Scene], act: Callable[[Scene], Awaitable[Any]], then: Callable[[Scene], Awaitable[None]]
) -> int:
    """Die at the first request, then at the second and so on, until the act survives; how many deaths there were."""
    deaths = 0
    for answer_lost in (False, True):
        for after in range(1, 100):
            scene = scene_of(1000 * answer_lost + after)
            await scene.prepare()
            scene.client.around = Death(after, answer_lost=answer_lost)
            try:
                await act(scene)
                survived = True
            except DiedError:
                survived = False
                deaths += 1
            scene.client.around = None
            await scene.check()
            await then(scene)
            if survived:
                break
    return deaths


@pytest.fixture
def scene_of(api: ControlPlane, transport: Transport, namespace: str) -> Callable[[int], Scene]:
    return lambda number: Scene(Interposed(transport, admin_of(api)), namespace, number)


async def test_a_change_that_dies_anywhere_can_be_repeated(scene_of: Callable[[int], Scene]) -> None:
    async def again(scene: Scene) -> None:
        await scene.change(scene.client)
        await scene.check()
        assert await scene.ours() == {f"{scene.prefix}-{name}" for name in ("stays", "deleted", "new")}
        data = {ref["metadata"]["name"]: ref["data"] async for ref in _all(scene)}
        assert data[f"{scene.prefix}-stays"] == {"x": "2"}
        assert data[f"{scene.prefix}-theirs"] == {"theirs": "1", "ours": "1"}

    assert await _die_at_every_request(scene_of, lambda scene: scene.change(scene.client), again) > 20


async def test_a_change_that_dies_anywhere_can_be_taken_back(scene_of: Callable[[int], Scene]) -> None:
    """The old manifests must be applied again although their digests are those of the last complete apply."""

    async def back(scene: Scene) -> None:
        objects = scene.set_of(scene.client)
        assert (await objects.apply(scene.first[:2])).ok
        assert (await objects.prune(scene.first[:2])).complete
        await scene.check()
        assert await scene.ours() == {f"{scene.prefix}-{name}" for name in ("stays", "gone")}
        data = {ref["metadata"]["name"]: ref["data"] async for ref in _all(scene)}
        assert data[f"{scene.prefix}-stays"] == {"x": "1"}
        assert data[f"{scene.prefix}-theirs"] == {"theirs": "1"}

    assert await _die_at_every_request(scene_of, lambda scene: scene.change(scene.client), back) > 20


@pytest.mark.parametrize("piece_bytes", [PIECE_BYTES, 200])
async def test_a_set_can_be_removed_whatever_died_before(
    scene_of: Callable[[int], Scene], monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """Also with an inventory of several parts."""
    monkeypatch.setattr(inventory, "pack", partial(pack, piece_bytes=piece_bytes))

    async def remove(scene: Scene) -> None:
        assert (await scene.set_of(scene.client).remove_all()).complete
        assert await scene.ours() == set()
        assert await exists(scene.client, CONFIG_MAPS, f"{scene.prefix}-theirs", scene.namespace)
        left = [each["metadata"]["name"] async for each in _all(scene)]
        assert not [name for name in left if name.startswith(f"{scene.prefix}-inventory")]

    assert await _die_at_every_request(scene_of, lambda scene: scene.change(scene.client), remove) > 20


async def test_a_removal_that_dies_anywhere_can_be_repeated(scene_of: Callable[[int], Scene]) -> None:
    async def remove(scene: Scene) -> None:
        assert (await scene.set_of(scene.client).remove_all()).complete
        assert await scene.ours() == set()
        assert not await exists(scene.client, CONFIG_MAPS, f"{scene.prefix}-inventory", scene.namespace)

    async def act(scene: Scene) -> None:
        await scene.set_of(scene.client).remove_all()

    assert await _die_at_every_request(scene_of, act, remove) > 10


def _all(scene: Scene) -> Any:
    return scene.client.list(CONFIG_MAPS, scene.namespace)
