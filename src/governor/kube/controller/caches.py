"""Reflectors shared by the controllers of one term: one for each kind, view, namespace and selectors."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from governor.kube.client import Client
from governor.kube.objects import ApiResource
from governor.kube.reflector import Added, Event, Reflector, Store, View
from governor.kube.reflector.store import Index
from governor.process.clock import Clock

V = TypeVar("V", bound=View)


class Selection(msgspec.Struct, frozen=True):
    """Which objects of a kind a cache holds."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


class Cache(Generic[V]):
    """One reflector with any number of handlers."""

    def __init__(
        self,
        client: Client,
        resource: ApiResource,
        view: type[V],
        selection: Selection,
        indexes: Mapping[str, Index[V]],
        clock: Clock,
    ) -> None:
        self._handlers: list[Callable[[Event[V]], None]] = []
        self.reflector = Reflector(
            client,
            resource,
            view,
            clock=clock,
            on_event=self._dispatch,
            namespace=selection.namespace,
            labels=selection.labels,
            fields=selection.fields,
            indexes=indexes,
        )

    @property
    def store(self) -> Store[V]:
        """The cached objects."""
        return self.reflector.store

    def subscribe(self, handler: Callable[[Event[V]], None]) -> None:
        """Call the handler for each event, and now for each object that is already cached."""
        for ref, entry in list(self.store.items()):
            handler(Added(ref, entry))
        self._handlers.append(handler)

    def _dispatch(self, event: Event[V]) -> None:
        for handler in self._handlers:
            handler(event)


class Caches:
    """All caches of one term; their reflectors run in its task group."""

    def __init__(self, client: Client, clock: Clock, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._clock = clock
        self._group = group
        self._caches: dict[tuple[Any, ...], Cache[Any]] = {}

    def get(
        self,
        resource: ApiResource,
        view: type[V],
        selection: Selection,
        indexes: Mapping[str, Index[V]] | None = None,
    ) -> Cache[V]:
        """Return the cache of these objects; the first call starts it."""
        indexes = indexes or {}
        key = (
            resource.path(),
            resource.kind,
            view,
            selection,
            tuple(sorted(indexes.items(), key=lambda each: each[0])),
        )
        cache = self._caches.get(key)
        if cache is None:
            cache = self._caches[key] = Cache(self._client, resource, view, selection, indexes, self._clock)
            self._group.create_task(cache.reflector.run())
        return cache
