"""Caches shared by several controllers."""

import asyncio
import json

import pytest
from aiohttp import web

from governor.kube.client import Client, Transport
from governor.kube.controller.caches import Caches, Selection
from governor.kube.objects import ApiResource
from governor.kube.reflector import Event, View
from governor.process.clock import SystemClock
from tests.unit.kube.http_bed import HttpServer, never_respond

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
SAME = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True, verbs=frozenset({"list"}))
LISTED = {
    "kind": "ConfigMapList",
    "metadata": {"resourceVersion": "5"},
    "items": [{"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "4"}}],
}


class StopError(Exception):
    """Ends the reflectors, which never end by themselves."""


class Other(View, frozen=True):
    kind: str = ""


async def subscribe_early_and_late(client: Client) -> None:
    early: list[Event[View]] = []
    late: list[Event[View]] = []
    async with asyncio.TaskGroup() as group:
        caches = Caches(client, SystemClock(), group)
        cache = caches.get(CONFIG_MAPS, View, Selection("ns", "a=b"))
        cache.subscribe(early.append)
        await cache.reflector.synced()
        assert caches.get(SAME, View, Selection("ns", "a=b")) is cache
        cache.subscribe(late.append)
        assert [each.ref.name for each in early] == [each.ref.name for each in late] == ["a"]
        others = [
            caches.get(CONFIG_MAPS, Other, Selection("ns", "a=b")),
            caches.get(CONFIG_MAPS, View, Selection("ns", "a=c")),
            caches.get(CONFIG_MAPS, View, Selection("", "a=b")),
            caches.get(CONFIG_MAPS, View, Selection("ns", "a=b"), {"name": lambda each: [each.metadata.name]}),
        ]
        assert len({id(each) for each in (cache, *others)}) == 5
        raise StopError


async def test_a_late_subscriber_of_a_shared_cache_gets_each_cached_object_once() -> None:
    async with Transport() as transport, HttpServer(web.Response(text=json.dumps(LISTED)), never_respond) as server:
        with pytest.raises(ExceptionGroup) as stopped:
            await subscribe_early_and_late(server.client(transport))
        assert stopped.group_contains(StopError)
