"""Fills the real cluster, changes its objects while clients watch, and records its responses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Final

import msgspec

from bench.concurrency import run_bounded
from bench.kube.replay import Recording
from bench.kube.sample import (
    APPLIED,
    CACHED,
    CONFIG_MAPS,
    MANAGER,
    WATCHED,
    config_map,
    config_map_name,
    deployment,
    deployment_status,
)
from bench.kube.with_governor import CONFIG_MAP, DEPLOYMENT
from governor.kube.client import Client, Request
from governor.kube.objects import ApiResource

CONTROLLER: Final = "kube-controller-manager"
_NAMESPACE: Final = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
_CONCURRENCY: Final = 16
_WATCHED_OBJECTS: Final = 100
_RECORDED_EVENTS: Final = 1000


class _List(msgspec.Struct, frozen=True):
    metadata: "_ListMetadata"


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class Cluster:
    """The real cluster, accessed as administrator."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changes = count(_WATCHED_OBJECTS)

    async def fill(self, objects: int) -> None:
        """Create all objects."""
        for name in (APPLIED, WATCHED, CACHED):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await self._client.apply(_NAMESPACE, namespace, manager=MANAGER, force=True)
        await run_bounded(self._apply_config_map, range(CONFIG_MAPS), _CONCURRENCY)
        await run_bounded(self._change, range(_WATCHED_OBJECTS), _CONCURRENCY)
        await run_bounded(self._set_watched_status, range(_WATCHED_OBJECTS), _CONCURRENCY)
        await run_bounded(self._create_cached, range(objects), _CONCURRENCY)

    async def cached_bytes(self) -> int:
        """Return the size of one object of the cache task."""
        return len(await self._client.send(Request("GET", DEPLOYMENT.path(CACHED, _cached_name(0)))))

    async def record(self) -> Recording:
        """Record the responses to get, list and watch."""
        config = await self._client.send(Request("GET", CONFIG_MAP.path(APPLIED, config_map_name(0))))
        listed = await self._client.send(Request("GET", DEPLOYMENT.path(WATCHED)))
        version = msgspec.json.decode(listed, type=_List).metadata.resource_version
        query = {"watch": "true", "resourceVersion": version}
        stream = self._client.stream_lines(Request("GET", DEPLOYMENT.path(WATCHED), query))
        async with self.changing(), aclosing(stream) as lines:
            events = [await anext(lines) for _ in range(_RECORDED_EVENTS)]
        return Recording(config, listed, tuple(events))

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Keep changing the watched objects during the block."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run_bounded(self._change, self._changes, 4))
            yield
            task.cancel()

    async def _apply_config_map(self, number: int) -> None:
        await self._client.apply(CONFIG_MAP, config_map(APPLIED, number, ""), manager=MANAGER, force=True)

    async def _change(self, number: int) -> None:
        revision, index = divmod(number, _WATCHED_OBJECTS)
        manifest = deployment(WATCHED, _watched_name(index), revision + 1, sidecar=True)
        await self._client.apply(DEPLOYMENT, manifest, manager=MANAGER, force=True)

    async def _create_cached(self, number: int) -> None:
        name = _cached_name(number)
        await self._client.apply(DEPLOYMENT, deployment(CACHED, name), manager=MANAGER, force=True)
        await self._set_status(CACHED, name)

    async def _set_watched_status(self, number: int) -> None:
        await self._set_status(WATCHED, _watched_name(number))

    async def _set_status(self, namespace: str, name: str) -> None:
        status = {"status": deployment_status()}
        await self._client.patch(DEPLOYMENT, name, namespace, status, manager=CONTROLLER, subresource="status")


def _watched_name(number: int) -> str:
    return f"watched-{number}"


def _cached_name(number: int) -> str:
    return f"application-{number}"
