"""A crash between any two writes orphans no object and loses no data of others.

A crash at a read, or before the response to a write, leaves the server in the same state as one before the next write.
"""

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from governor.kube.applyset import ApplySet
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.objects import Object
from governor.process.flowcontrol.limiter import Rate
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    LABEL,
    RecordingClient,
    apply,
    config_map,
    exists,
    make_set,
    prune,
)
from tests.contract.kube.bed import admin_of

UNLIMITED = Limits(rate=Rate(per_s=1e6, burst=10_000))


class CrashError(Exception):
    """The simulated crash."""


class Crash:
    """Passes a number of writes and fails the next one and all later requests, as if the program had crashed."""

    def __init__(self, writes: int) -> None:
        self._remaining = writes

    async def __call__(self, request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        self._remaining -= request.method != "GET"
        if self._remaining < 0:
            raise CrashError
        return await send(request)


class Scene:
    """One set in its first state, beside objects of other clients, one of which it shares."""

    def __init__(self, client: RecordingClient, namespace: str, number: int) -> None:
        self.client = client
        self.namespace = namespace
        self.owner = f"{namespace}-{number}"
        self.prefix = f"s{number}"

    def manifest(self, name: str, **data: str) -> Object:
        return config_map(f"{self.prefix}-{name}", **data)

    def set_of(self, client: Client) -> ApplySet:
        return make_set(client, self.namespace, owner=self.owner, name=f"{self.prefix}-inventory", concurrency=1)

    @property
    def first(self) -> list[Object]:
        return [self.manifest("gone", x="1"), self.manifest("stays", x="1"), self.manifest("deleted", x="1")]

    @property
    def second(self) -> list[Object]:
        # One changed, one deleted by another client, one new, one that another client owns.
        return [
            self.manifest("stays", x="2"),
            self.manifest("deleted", x="2"),
            self.manifest("new", x="1"),
            self.manifest("theirs", ours="1"),
        ]

    async def prepare(self) -> None:
        theirs = self.manifest("theirs", theirs="1")
        theirs["metadata"]["namespace"] = self.namespace
        await self.client.create(CONFIG_MAPS, theirs, manager="other-client")
        await apply(self.set_of(self.client), self.first)
        await self.client.delete(CONFIG_MAPS, f"{self.prefix}-deleted", self.namespace)

    async def change(self, client: Client) -> None:
        objects = self.set_of(client)
        assert (await apply(objects, self.second)).ok
        assert (await prune(objects, self.second)).complete

    async def owned(self) -> set[str]:
        found = self.client.list(CONFIG_MAPS, self.namespace, labels=f"{LABEL}={self.owner}")
        return {each["metadata"]["name"] async for each in found}

    async def check(self) -> None:
        """Check that the inventory lists all owned objects and that the other client's object is unchanged."""
        known = {ref.name for ref in await self.set_of(self.client).inventory()}
        assert await self.owned() <= known
        theirs = await self.client.get(CONFIG_MAPS, f"{self.prefix}-theirs", self.namespace)
        assert theirs["data"]["theirs"] == "1"
        assert LABEL not in theirs["metadata"].get("labels", {})


async def _crash_at_every_write(
    scene_of: Callable[[int], Scene],
    call: Callable[[Scene], Awaitable[Any]],
    verify: Callable[[Scene], Awaitable[None]],
) -> int:
    """Crash at the first write, then at the second and so on until the call completes; return the crash count."""
    for crashes in count():
        scene = scene_of(crashes)
        await scene.prepare()
        scene.client.intercept = Crash(crashes)
        try:
            await call(scene)
            completed = True
        except CrashError:
            completed = False
        scene.client.intercept = None
        await scene.check()
        await verify(scene)
        if completed:
            return crashes
    raise AssertionError


@pytest.fixture
def scene_of(api: ControlPlane, transport: Transport, namespace: str) -> Callable[[int], Scene]:
    client = RecordingClient(transport, admin_of(api), UNLIMITED)
    return lambda number: Scene(client, namespace, number)


async def test_a_crashed_change_can_be_repeated(scene_of: Callable[[int], Scene]) -> None:
    async def again(scene: Scene) -> None:
        await scene.change(scene.client)
        await scene.check()
        assert await scene.owned() == {f"{scene.prefix}-{name}" for name in ("stays", "deleted", "new")}
        data = {ref["metadata"]["name"]: ref["data"] async for ref in _all(scene)}
        assert data[f"{scene.prefix}-stays"] == {"x": "2"}
        assert data[f"{scene.prefix}-theirs"] == {"theirs": "1", "ours": "1"}

    assert await _crash_at_every_write(scene_of, lambda scene: scene.change(scene.client), again) > 6


async def test_a_crashed_change_can_be_reverted(scene_of: Callable[[int], Scene]) -> None:
    """The old manifests must be applied again although their digests are those of the last complete apply."""

    async def back(scene: Scene) -> None:
        objects = scene.set_of(scene.client)
        assert (await apply(objects, scene.first[:2])).ok
        assert (await prune(objects, scene.first[:2])).complete
        await scene.check()
        assert await scene.owned() == {f"{scene.prefix}-{name}" for name in ("stays", "gone")}
        data = {ref["metadata"]["name"]: ref["data"] async for ref in _all(scene)}
        assert data[f"{scene.prefix}-stays"] == {"x": "1"}
        assert data[f"{scene.prefix}-theirs"] == {"theirs": "1"}

    assert await _crash_at_every_write(scene_of, lambda scene: scene.change(scene.client), back) > 6


async def test_a_set_can_be_deleted_after_any_crash(scene_of: Callable[[int], Scene]) -> None:
    async def remove(scene: Scene) -> None:
        assert (await scene.set_of(scene.client).delete_all()).complete
        assert await scene.owned() == set()
        assert await exists(scene.client, CONFIG_MAPS, f"{scene.prefix}-theirs", scene.namespace)
        remaining = [each["metadata"]["name"] async for each in _all(scene)]
        assert not [name for name in remaining if name.startswith(f"{scene.prefix}-inventory")]

    assert await _crash_at_every_write(scene_of, lambda scene: scene.change(scene.client), remove) > 6


async def test_a_crashed_deletion_can_be_repeated(scene_of: Callable[[int], Scene]) -> None:
    async def remove(scene: Scene) -> None:
        assert (await scene.set_of(scene.client).delete_all()).complete
        assert await scene.owned() == set()
        assert not await exists(scene.client, CONFIG_MAPS, f"{scene.prefix}-inventory", scene.namespace)

    async def call(scene: Scene) -> None:
        await scene.set_of(scene.client).delete_all()

    assert await _crash_at_every_write(scene_of, call, remove) >= 4


def _all(scene: Scene) -> Any:
    return scene.client.list(CONFIG_MAPS, scene.namespace)
