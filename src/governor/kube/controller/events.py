"""The event recorder: writes core/v1 Events, which ``kubectl describe`` shows with their counts and ages.

Recording never waits and never fails: Events beyond the queue or the rate limit are dropped and counted, and so are
those that the API server rejects. ``event_correlator`` decides what is written.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits
from governor.kube.controller.conditions import format_time
from governor.kube.controller.event_correlator import EventCorrelator, EventType, EventWrite, Occurrence
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.reflector import Metadata
from governor.process.clock import Clock
from governor.process.flowcontrol.limiter import Rate
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Counter, Registry

__all__ = ["LIMITS", "EventRecorder", "EventType"]

EVENTS: Final = ApiResource("", "v1", "Event", "events", namespaced=True)
LIMITS: Final = Limits(rate=Rate(per_s=20.0, burst=50), attempts=2)
"""For a separate client, so that Events neither delay the work nor open its circuit."""
MAX_QUEUED: Final = 1000
FLUSH_S: Final = 2.0
"""How long the recorder writes queued Events after it is cancelled."""
_DEFAULT_NAMESPACE: Final = "default"
"""Namespace of Events about cluster-scoped objects."""

_log = logging.get_logger(__name__)


class EventRecorder:
    """Queues Events and writes them one after another."""

    def __init__(self, client: Client, component: str, clock: Clock, registry: Registry) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._correlator = EventCorrelator()
        self._queue: dict[str, EventWrite] = {}
        self._queued = asyncio.Event()
        dropped = Counter(
            "governor_events_dropped_total",
            "Events that were not written: queue full, rate limit of their object, or rejected by the API server.",
            ["reason"],
            registry=registry,
        )
        self._full, self._limited, self._rejected = (dropped.labels(each) for each in ("queue", "rate", "error"))

    def record(
        self,
        resource: ApiResource,
        metadata: Metadata,
        event_type: EventType,
        reason: str,
        message: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Queue an Event about an object."""
        ref = ObjectRef(resource.group, resource.kind, metadata.namespace, metadata.name)
        occurrence = Occurrence(ref, resource.api_version, metadata.uid, event_type, reason, message, annotations or {})
        write = self._correlator.correlate(occurrence, self._clock.now())
        if write is None:
            self._limited.inc()
        elif write.name not in self._queue and len(self._queue) >= MAX_QUEUED:
            self._full.inc()
        else:
            self._queue[write.name] = write  # replaces an older count of the same Event
            self._queued.set()

    async def run(self) -> None:
        """Write queued Events until cancelled, then those that remain, for a short time."""
        try:
            while True:
                await self._queued.wait()
                await self._write_queued()
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(FLUSH_S):
                    await self._write_queued()
            except TimeoutError:
                _log.warning("Events were not written before the program stopped", count=len(self._queue))
            raise

    async def _write_queued(self) -> None:
        while self._queue:
            name = next(iter(self._queue))
            write = self._queue.pop(name)
            try:
                await self._write(write)
            except GovernorError as error:
                self._rejected.inc()
                _log.warning("cannot write an Event", object=str(write.occurrence.ref), error=str(error))
        self._queued.clear()

    async def _write(self, write: EventWrite) -> None:
        if write.count > 1 and await self._update(write):
            return
        try:
            await self._client.create(EVENTS, self._manifest(write), manager=self._component)
        except GovernorError as error:
            if error.kind is not Kind.EXISTS:  # the response to an earlier attempt was lost
                raise

    async def _update(self, write: EventWrite) -> bool:
        """Update the count; return False if the Event was not created or has expired."""
        change = {
            "count": write.count,
            "message": write.occurrence.message,
            "metadata": {"annotations": dict(write.occurrence.annotations)},
            "lastTimestamp": format_time(write.last),
        }
        namespace = write.occurrence.ref.namespace or _DEFAULT_NAMESPACE
        try:
            await self._client.patch(EVENTS, write.name, namespace, change, manager=self._component)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return False
        return True

    def _manifest(self, write: EventWrite) -> Object:
        occurrence = write.occurrence
        ref = occurrence.ref
        involved = {
            "apiVersion": occurrence.api_version,
            "kind": ref.kind,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": occurrence.uid,
        }
        metadata = {
            "name": write.name,
            "namespace": ref.namespace or _DEFAULT_NAMESPACE,
            "annotations": dict(occurrence.annotations),
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": {name: value for name, value in involved.items() if value},
            "type": str(occurrence.type),
            "reason": occurrence.reason,
            "message": occurrence.message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "count": write.count,
            "firstTimestamp": format_time(write.first),
            "lastTimestamp": format_time(write.last),
        }
