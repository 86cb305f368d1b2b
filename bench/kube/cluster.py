"""The real cluster: filled with objects, changed while others watch, and recorded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Final

import msgspec

from bench.kube.ours import CONFIG_MAP, DEPLOYMENT
from bench.kube.replay import Recording
from bench.kube.sample import (
    APPLIED,
    CONFIG_MAPS,
    HELD,
    MANAGER,
    WATCHED,
    config_map,
    config_map_name,
    deployment,
    deployment_status,
)
from bench.turns import in_turn
from governor.kube.client import Client, Request
from governor.kube.objects import ApiResource

CONTROLLER: Final = "kube-controller-manager"
_NAMESPACE: Final = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
_AT_ONCE: Final = 16
_WATCHED: Final = 100
_RECORDED: Final = 1000


class _List(msgspec.Struct, frozen=True):
    metadata: "_ListMetadata"


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class Cluster:
    """What is done to the real cluster, as its administrator."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changes = count(_WATCHED)

    async def fill(self, objects: int) -> None:
        """Make everything that is read later."""
        for name in (APPLIED, WATCHED, HELD):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await self._client.apply(_NAMESPACE, namespace, manager=MANAGER, force=True)
        await in_turn(self._apply_config_map, range(CONFIG_MAPS), _AT_ONCE)
        await in_turn(self._change, range(_WATCHED), _AT_ONCE)
        await in_turn(self._set_watched_status, range(_WATCHED), _AT_ONCE)
        await in_turn(self._hold, range(objects), _AT_ONCE)

    async def held_bytes(self) -> int:
        """How large one of the many objects is."""
        return len(await self._client.send(Request("GET", DEPLOYMENT.path(HELD, _held(0)))))

    async def record(self) -> Recording:
        """What the server answers to those who get, list and watch."""
        config = await self._client.send(Request("GET", CONFIG_MAP.path(APPLIED, config_map_name(0))))
        listed = await self._client.send(Request("GET", DEPLOYMENT.path(WATCHED)))
        version = msgspec.json.decode(listed, type=_List).metadata.resource_version
        query = {"watch": "true", "resourceVersion": version}
        stream = self._client.stream_lines(Request("GET", DEPLOYMENT.path(WATCHED), query))
        async with self.changing(), aclosing(stream) as lines:
            events = [await anext(lines) for _ in range(_RECORDED)]
        return Recording(config, listed, tuple(events))

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Change the watched objects in turn, all the time."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(in_turn(self._change, self._changes, 4))
            yield
            task.cancel()

    async def _apply_config_map(self, number: int) -> None:
        await self._client.apply(CONFIG_MAP, config_map(APPLIED, number, ""), manager=MANAGER, force=True)

    async def _change(self, number: int) -> None:
        revision, which = divmod(number, _WATCHED)
        manifest = deployment(WATCHED, _watched(which), revision + 1, sidecar=True)
        await self._client.apply(DEPLOYMENT, manifest, manager=MANAGER, force=True)

    async def _hold(self, number: int) -> None:
        name = _held(number)
        await self._client.apply(DEPLOYMENT, deployment(HELD, name), manager=MANAGER, force=True)
        await self._set_status(HELD, name)

    async def _set_watched_status(self, number: int) -> None:
        await self._set_status(WATCHED, _watched(number))

    async def _set_status(self, namespace: str, name: str) -> None:
        status = {"status": deployment_status()}
        await self._client.patch(DEPLOYMENT, name, namespace, status, manager=CONTROLLER, subresource="status")


def _watched(number: int) -> str:
    return f"watched-{number}"


def _held(number: int) -> str:
    return f"application-{number}"
