"""The event recorder never waits, is bounded, and writes what remains when it stops."""

import asyncio
import json

from aiohttp import web

from governor.kube.client import Transport
from governor.kube.controller import events
from governor.kube.controller.events import EventRecorder, EventType
from governor.kube.objects import ApiResource
from governor.kube.reflector import Metadata
from governor.process.clock import VirtualClock
from governor.process.telemetry.instruments import Registry
from testbed.waiting import until
from tests.unit.kube.http_bed import HttpServer, failure, never_respond

SITES = ApiResource("example.dev", "v1", "Site", "sites", namespaced=True)
NODES = ApiResource("", "v1", "Node", "nodes", namespaced=False)
CREATED = web.Response(text=json.dumps({"kind": "Event", "metadata": {"name": "e"}}))
EXPIRED = web.Response(body=failure(404, "NotFound"), status=404)


class Bed:
    """A recorder whose API server gives the responses of a test."""

    def __init__(self, server: HttpServer, transport: Transport) -> None:
        self.server = server
        self.registry = Registry()
        self.recorder = EventRecorder(server.client(transport), "sites", VirtualClock(), self.registry)

    def record(self, name: str = "a", message: str = "m", resource: ApiResource = SITES) -> None:
        namespace = "ns" if resource.namespaced else ""
        self.recorder.record(resource, Metadata(name, namespace, f"uid-{name}"), EventType.NORMAL, "R", message)

    def dropped(self, reason: str) -> float | None:
        return self.registry.value("governor_events_dropped_total", {"reason": reason})

    async def requests(self, count: int) -> list[tuple[str, str]]:
        async def sent() -> bool:
            return len(self.server.bodies) >= count

        await until(sent)
        return [(each.method, each.path) for each in self.server.requests]


async def stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_an_event_that_has_expired_is_created_again_with_its_count() -> None:
    async with Transport() as transport, HttpServer(CREATED, EXPIRED, CREATED) as server:
        bed = Bed(server, transport)
        running = asyncio.create_task(bed.recorder.run())
        bed.record()
        await bed.requests(1)
        bed.record()
        requests = await bed.requests(3)
        await stop(running)
    assert [method for method, _ in requests] == ["POST", "PATCH", "POST"]
    assert json.loads(server.bodies[2])["count"] == 2


async def test_recording_never_waits_and_a_full_queue_drops_and_counts() -> None:
    async with Transport() as transport, HttpServer(never_respond) as server:
        bed = Bed(server, transport)
        for number in range(events.MAX_QUEUED + 3):
            bed.record(f"object-{number}")
        assert bed.dropped("queue") == 3
        bed.record("object-0")
        assert bed.dropped("queue") == 3, "a repeated event takes no further place"
        for _ in range(30):
            bed.record("object-0")
        assert bed.dropped("rate") == 7


async def test_queued_events_are_written_when_the_recorder_stops() -> None:
    async with Transport() as transport, HttpServer(CREATED) as server:
        bed = Bed(server, transport)
        running = asyncio.create_task(bed.recorder.run())
        await asyncio.sleep(0)
        bed.record("a")
        bed.record("b", resource=NODES)
        await stop(running)
    bodies = [json.loads(each) for each in server.bodies]
    assert [each["involvedObject"]["name"] for each in bodies] == ["a", "b"]
    assert [each["metadata"]["namespace"] for each in bodies] == ["ns", "default"]


async def test_a_server_that_does_not_answer_delays_the_end_only_briefly(monkeypatch: object) -> None:
    async with Transport() as transport, HttpServer(never_respond) as server:
        bed = Bed(server, transport)
        running = asyncio.create_task(bed.recorder.run())
        bed.record()
        await bed.requests(1)
        monkeypatch.setattr(events, "FLUSH_S", 0.01)  # type: ignore[attr-defined]
        bed.record("b")
        await stop(running)
