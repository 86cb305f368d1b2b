"""The status writer knows its last write before the cache does."""

import json

import msgspec
from aiohttp import web

from governor.kube.client import Transport
from governor.kube.controller.conditions import Condition
from governor.kube.controller.status import StatusWriter
from governor.kube.controller.views import Resource, ResourceMetadata, Status
from governor.kube.objects import ApiResource, ObjectRef
from governor.process.clock import VirtualClock
from tests.unit.kube.http_bed import HttpServer

SITES = ApiResource("example.dev", "v1", "Site", "sites", namespaced=True)
STALE = Resource(metadata=ResourceMetadata("a", "ns", "uid", "5", generation=1))
READY = Status(conditions=(Condition("Ready", "True", "R"),))
BOTH = Status(conditions=(*READY.conditions, Condition("Other", "True", "R")))
STORED = web.Response(text=json.dumps({"kind": "Site", "metadata": {"name": "a", "resourceVersion": "10"}}))


async def test_a_cache_that_lags_behind_a_write_causes_no_second_write() -> None:
    clock = VirtualClock()
    async with Transport() as transport, HttpServer(STORED) as server:
        writer = StatusWriter(server.client(transport), SITES, "sites-status", clock)
        assert await writer.write(STALE, READY)
        await clock.advance(60)
        assert not await writer.write(STALE, READY)
        newer = msgspec.structs.replace(STALE.metadata, resource_version="11")
        removed_by_user = msgspec.structs.replace(STALE, metadata=newer)
        assert await writer.write(removed_by_user, READY)
        replaced = msgspec.structs.replace(STALE, metadata=msgspec.structs.replace(newer, uid="another"))
        assert await writer.write(replaced, READY)
        writer.forget(ObjectRef("example.dev", "Site", "ns", "a"))
        assert await writer.write(STALE, READY)
    first, second = (json.loads(each)["status"]["conditions"][0] for each in server.bodies[:2])
    assert first["lastTransitionTime"] < second["lastTransitionTime"], "the user's removal was a transition"
    assert [json.loads(each)["metadata"]["uid"] for each in server.bodies] == ["uid", "uid", "another", "uid"]


async def test_a_condition_that_is_no_longer_desired_is_removed() -> None:
    async with Transport() as transport, HttpServer(STORED) as server:
        writer = StatusWriter(server.client(transport), SITES, "sites-status", VirtualClock())
        assert await writer.write(STALE, BOTH)
        assert await writer.write(STALE, READY)
        assert not await writer.write(STALE, READY)
    assert [len(json.loads(each)["status"]["conditions"]) for each in server.bodies] == [2, 1]
