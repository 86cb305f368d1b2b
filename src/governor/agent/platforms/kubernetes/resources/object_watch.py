"""Watches the runtime's own objects, so that drift is found at once and not only by the next resync.

Only the kinds and namespaces of the present delivery are watched, by the owner label: an object that loses the label is
gone too. The agent's own writes are no drift, and neither is it if an object is gone that the delivery does not have.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import NamedTuple

import msgspec

from governor.errors import GovernorError
from governor.kube.applyset.live import find_kinds
from governor.kube.client import Client
from governor.kube.controller.views import readable
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector import Changed, Event, Metadata, Reflector, Removed, View
from governor.process.clock import Clock
from governor.process.telemetry import logging

_log = logging.get_logger(__name__)


class ManagedFields(msgspec.Struct, frozen=True, gc=False):
    """The last write of one field manager."""

    manager: str = ""
    time: datetime | None = None


class WatchedMetadata(Metadata, frozen=True, kw_only=True):
    """The metadata of an object of the runtime."""

    generation: int = 0
    managed_fields: tuple[ManagedFields, ...] = ()


class WatchedObject(View, frozen=True):
    """An object of the runtime: how often its content was changed, and by whom."""

    metadata: WatchedMetadata


class _Kind(NamedTuple):
    """A kind in a namespace."""

    group: str
    kind: str
    namespace: str


class ObjectWatch:
    """Watches the objects of one runtime. ``labels`` select them, ``manager`` is the agent's own field manager.

    ``on_change`` is called when another client has changed the content of one, or when one is gone. It must not block.
    """

    def __init__(
        self, client: Client, labels: str, manager: str, *, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self._client = client
        self._labels = labels
        self._manager = manager
        self._clock = clock
        self._on_change = on_change
        self._followed: frozenset[ObjectRef] = frozenset()
        self._wanted: frozenset[_Kind] = frozenset()
        self._changed = asyncio.Event()
        self._watches: dict[_Kind, asyncio.Task[None]] = {}

    def follow(self, refs: Iterable[ObjectRef]) -> None:
        """Watch the kinds and namespaces of these objects, and no others."""
        self._followed = frozenset(refs)
        self._wanted = frozenset(_Kind(ref.group, ref.kind, ref.namespace) for ref in self._followed)
        if self._wanted != self._watches.keys():
            self._changed.set()

    async def run(self) -> None:
        """Watch what is followed until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for each in self._watches.keys() - self._wanted:
                    self._watches.pop(each).cancel()
                await self._start(self._wanted - self._watches.keys(), tasks)

    async def _start(self, kinds: frozenset[_Kind], tasks: asyncio.TaskGroup) -> None:
        """Start watches; those that cannot be started are tried again when the delivery is checked again."""
        try:
            served = await find_kinds(self._client, {(each.group, "", each.kind) for each in kinds})
        except GovernorError as error:
            _log.warning("cannot watch the runtime's objects yet", error=str(error))
            return
        for each in kinds:
            if (resource := served.get((each.group, "", each.kind))) is not None:
                self._watches[each] = tasks.create_task(self._reflector(resource, each.namespace).run())

    def _reflector(self, resource: ApiResource, namespace: str) -> Reflector[WatchedObject]:
        return Reflector(
            self._client,
            resource,
            WatchedObject,
            clock=self._clock,
            on_event=self._received,
            namespace=namespace,
            labels=self._labels,
            metadata_only=True,
        )

    def _received(self, event: Event[WatchedObject]) -> None:
        if is_drift(event, self._followed, self._manager):
            self._on_change()


def is_drift(event: Event[WatchedObject], followed: Collection[ObjectRef], manager: str) -> bool:
    """Return whether another client than ``manager`` changed the content of an object, or a followed one is gone.

    If two clients wrote in the same second, it may have been either.
    """
    if isinstance(event, Removed):
        return event.ref in followed
    new, old = readable(event.new), readable(event.old) if isinstance(event, Changed) else None
    if new is None or (old is not None and old.metadata.generation == new.metadata.generation):
        return False
    times = [each.time for each in new.metadata.managed_fields if each.time is not None]
    last = max(times, default=None)
    return any(each.manager != manager for each in new.metadata.managed_fields if each.time == last)
