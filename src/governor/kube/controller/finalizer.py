"""The finalizer of a controller: holds an object that is being deleted until its owned objects are gone.

A finalizer that holds its object for longer than its time limit reports that by a Warning event and a condition.
"""

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Final

from governor.errors import GovernorError, Kind
from governor.kube.controller.conditions import FALSE, Condition
from governor.kube.controller.context import Tools
from governor.kube.controller.event_correlator import EventType
from governor.kube.controller.status import StatusWriter
from governor.kube.controller.views import Resource, ResourceMetadata, Status
from governor.kube.objects import ObjectRef
from governor.process.clock import Clock
from governor.process.reconcile.reconciler import Done, Failed, Outcome, Stalled, Waiting

FINALIZED: Final = "Finalized"
"""Type of the condition that reports a finalizer that takes too long."""
_UNFINISHED: Final = "its finalize function has not finished"


def remaining_s(deletion_timestamp: str, timeout_s: float, now: datetime.datetime) -> float:
    """Return how long finalization may still take; zero or negative once the limit has passed. Pure."""
    try:
        requested = datetime.datetime.fromisoformat(deletion_timestamp)
    except ValueError:
        return timeout_s
    return timeout_s - (now - requested).total_seconds()


class Finalizer:
    """One finalizer on the objects of one kind, in one term of leadership."""

    def __init__(self, name: str, timeout_s: float, manager: str, tools: Tools, clock: Clock) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._manager = manager
        self._tools = tools
        self._clock = clock
        # With its own manager: neither the controller nor other writers lose or get conditions by it.
        self._status = StatusWriter(tools.client, tools.resource, manager, clock)

    def holds(self, metadata: ResourceMetadata) -> bool:
        """Return whether the object has the finalizer."""
        return self._name in metadata.finalizers

    async def add(self, metadata: ResourceMetadata) -> None:
        """Add the finalizer; CONFLICT if the object was deleted or replaced meanwhile.

        Server-side apply merges finalizers as a set, so this conflicts with no other writer.
        """
        # Without the uid, the object would be created if it is gone.
        own = {"name": metadata.name, "uid": metadata.uid, "finalizers": [self._name]}
        manifest = {
            "apiVersion": self._tools.resource.api_version,
            "kind": self._tools.resource.kind,
            "metadata": own | ({"namespace": metadata.namespace} if metadata.namespace else {}),
        }
        await self._tools.client.apply(self._tools.resource, manifest, manager=self._manager)

    async def remove(self, key: ObjectRef) -> None:
        """Remove the finalizer, even if another manager added it; CONFLICT if the object changes meanwhile."""
        self._status.forget(key)
        client, resource = self._tools.client, self._tools.resource
        try:
            live = (await client.get(resource, key.name, key.namespace, metadata_only=True))["metadata"]
            found = live.get("finalizers") or []
            if self._name in found:
                others = [each for each in found if each != self._name]
                change = {"uid": live["uid"], "resourceVersion": live["resourceVersion"], "finalizers": others}
                await client.patch(resource, key.name, key.namespace, {"metadata": change}, manager=self._manager)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise

    async def run(
        self, key: ObjectRef, view: Resource, finalize: Callable[[], Awaitable[Outcome]]
    ) -> tuple[Outcome, float]:
        """Finalize an object and, if that is Done, remove the finalizer.

        Return the outcome and, if it is not Done, how long finalization may still take.
        """
        try:
            outcome = await finalize()
            if isinstance(outcome, Done):
                await self.remove(key)
                return outcome, 0.0
        except asyncio.CancelledError:
            # By the time limit of the run, which leaves none to write a condition.
            if self._remaining_s(view) <= 0:
                self._record_overdue(view, _UNFINISHED)
            raise
        except Exception as error:
            await self._check_deadline(view, Failed(error))
            raise
        return outcome, await self._check_deadline(view, outcome)

    async def _check_deadline(self, view: Resource, outcome: Outcome) -> float:
        """Return how long finalization may still take, at least zero; report it if the limit has passed."""
        left_s = self._remaining_s(view)
        if left_s <= 0:
            await self._report_overdue(view, _describe(outcome))
        return max(0.0, left_s)

    def _remaining_s(self, view: Resource) -> float:
        return remaining_s(view.metadata.deletion_timestamp, self._timeout_s, self._clock.now())

    def _record_overdue(self, view: Resource, reason: str) -> str:
        """Record the Event and return its message."""
        message = f"{self._name} has held the object for more than {self._timeout_s:g} s: {reason}"
        tools = self._tools
        tools.recorder.record(tools.resource, view.metadata, EventType.WARNING, "FinalizerTimeout", message)
        return message

    async def _report_overdue(self, view: Resource, reason: str) -> None:
        message = self._record_overdue(view, reason)
        if "status" in self._tools.resource.subresources:
            condition = Condition(FINALIZED, FALSE, "DeadlineExceeded", message)
            known = Status(view.status.observed_generation, view.status.conditions)
            await self._status.write(Resource(metadata=view.metadata, status=known), Status(conditions=(condition,)))


def _describe(outcome: Outcome) -> str:
    match outcome:
        case Waiting(reason=reason) | Stalled(reason=reason):
            return reason
        case Failed(error=error):
            return str(error)
        case _:
            return _UNFINISHED
