"""What the controllers of one term share: a reflector for each kind, view, namespace and selectors; inventories."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from governor.kube.applyset.inventory import CONFIG_MAPS
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object
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
        self._inventories: dict[tuple[str, str], Sequence[Object]] = {}
        self._listing = asyncio.Lock()

    async def inventories(self, namespace: str, label: str) -> Sequence[Object]:
        """Return the metadata of the inventories with a label at the start of the term; they are listed once."""
        async with self._listing:
            found = self._inventories.get((namespace, label))
            if found is None:
                listed = self._client.list(CONFIG_MAPS, namespace, labels=label, metadata_only=True)
                found = self._inventories[namespace, label] = [_named(each, label) async for each in listed]
            return found

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


def _named(inventory: Object, label: str) -> Object:
    """Return an inventory without what does not identify its owner."""
    metadata = inventory["metadata"]
    labels = {label: (metadata.get("labels") or {}).get(label)}
    return {"metadata": {"name": metadata["name"], "namespace": metadata.get("namespace", ""), "labels": labels}}
