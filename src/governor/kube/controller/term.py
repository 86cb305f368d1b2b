"""The work of one term of leadership. Everything is created for the term: work cancelled with the last one is repeated.

For each controller: resolve its kinds, start its caches, wait until they are complete, find the owners that were
deleted while no watch ran, and only then reconcile.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from governor.errors import GovernorError
from governor.kube.applyset import ApplySet
from governor.kube.client import Client
from governor.kube.controller import mapping
from governor.kube.controller.caches import Cache, Caches, Selection
from governor.kube.controller.context import Context, Tools
from governor.kube.controller.controller import Controller, KindOf, OwnedBy, Owns, Watch
from governor.kube.controller.events import EventRecorder, EventType
from governor.kube.controller.finalizer import Finalizer
from governor.kube.controller.status import StatusWriter
from governor.kube.controller.views import Owned, Resource, owned_view
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector import Event, Unreadable, View
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.reconciler import (
    Done,
    Failed,
    Outcome,
    ReconcileMetrics,
    Reconciler,
    Requeue,
    Stalled,
)
from governor.process.reconcile.resync import Resync
from governor.process.telemetry import logging

CONFIG_MAPS: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
_START_BACKOFF: Final = Backoff(initial_s=0.5, max_s=30.0)
_STALE_CACHE_S: Final = 1.0
"""When a key is reconciled again whose object exists although the cache does not have it."""

V = TypeVar("V", bound=View)
Result = TypeVar("Result")
_log = logging.get_logger(__name__)


class Environment(msgspec.Struct, frozen=True):
    """What the controllers of one operator share."""

    client: Client
    recorder: EventRecorder
    metrics: ReconcileMetrics
    clock: Clock
    namespace: str
    """Of the inventories of cluster-scoped owners."""
    watch_namespace: str
    """Of the watched objects; empty for all."""
    resync_s: float
    grace_s: float
    """How long running reconciliations may take to finish when the operator stops."""


class Term:
    """All controllers of an operator for one term."""

    def __init__(self, controllers: Sequence[Controller[Any]], environment: Environment) -> None:
        self._environment = environment
        self._runs = [ControllerRun(each, environment) for each in controllers]

    async def run(self, is_leader: Callable[[], bool]) -> None:
        """Work until cancelled; if still leading then, let running reconciliations finish first."""
        work = asyncio.create_task(self._work())
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            if is_leader():
                await self._drain(is_leader)
            raise
        finally:
            work.cancel()
            await asyncio.wait({work})
        work.result()

    def not_ready(self) -> str:
        """Return which controllers have not started yet and why, or ``""``."""
        return "; ".join(f"{run.name}: {run.not_started}" for run in self._runs if run.not_started)

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            caches = Caches(self._environment.client, self._environment.clock, group)
            for run in self._runs:
                group.create_task(run.run(caches))

    async def _drain(self, is_leader: Callable[[], bool]) -> None:
        draining = asyncio.gather(*(run.shut_down() for run in self._runs))
        while not draining.done() and is_leader():
            await asyncio.wait({draining}, timeout=0.1)
        draining.cancel()


class ControllerRun(Generic[V]):
    """One controller for one term."""

    def __init__(self, controller: Controller[V], environment: Environment) -> None:
        self._controller = controller
        self._environment = environment
        self._client = environment.client
        self._clock = environment.clock
        self._keys_by_id: dict[str, ObjectRef] = {}
        self._reconciler = Reconciler[ObjectRef](
            self._reconcile,
            name=controller.name,
            metrics=environment.metrics,
            clock=environment.clock,
            backoff=controller.backoff,
            workers=controller.workers,
            timeout_s=controller.timeout_s,
            group_of=controller.group_of,
            on_outcome=self._log_outcome,
        )
        self.not_started = "resolving its kinds"
        """Why it does not reconcile yet; empty once it does."""

    @property
    def name(self) -> str:
        """The name of the controller."""
        return self._controller.name

    async def run(self, caches: Caches) -> None:
        """Start the caches, wait for them, then reconcile until cancelled or shut down."""
        await self._start(caches)
        self.not_started = "listing its objects"
        for cache in self._caches:
            await cache.reflector.synced()
        self.not_started = "listing the inventories"
        await self._retry(self._add_orphans)
        self.not_started = ""
        _log.info("controller started", controller=self.name, objects=len(self._primary.store))
        resync = Resync(
            lambda: tuple(self._primary.store),
            self._reconciler.add,
            self._environment.resync_s,
            clock=self._clock,
        )
        async with asyncio.TaskGroup() as group:
            resyncing = group.create_task(resync.run())
            await self._reconciler.run()
            resyncing.cancel()

    async def shut_down(self) -> None:
        """Start no more keys and let the running ones finish."""
        await self._reconciler.shut_down(self._environment.grace_s)

    async def _start(self, caches: Caches) -> None:
        controller = self._controller
        namespace = controller.namespace or self._environment.watch_namespace
        self._resource = await self._resolve(controller.kind)
        resolved = [(owns, await self._resolve(owns.kind)) for owns in controller.owned]
        watched = [(watch, await self._resolve(watch.kind)) for watch in controller.watched]
        manager = controller.settings.manager
        status = StatusWriter(self._client, self._resource, f"{manager}-status", self._clock)
        self._tools = Tools(self._client, self._resource, self._environment.recorder, status, {}, controller.recheck_s)
        self._finalizer = Finalizer(
            controller.finalizer, controller.finalizer_timeout_s, f"{manager}-finalizer", self._tools, self._clock
        )
        selection = Selection(namespace if self._resource.namespaced else "", controller.labels, controller.fields)
        self._primary = caches.get(self._resource, controller.view, selection, controller.indexes)
        self._caches: list[Cache[Any]] = [self._primary]
        self._primary.subscribe(self._on_primary)
        for owns, resource in resolved:
            self._caches.append(self._subscribe_owned(caches, owns, resource, namespace))
        for watch, resource in watched:
            self._caches.append(self._subscribe_watch(caches, watch, resource, namespace))

    def _subscribe_owned(self, caches: Caches, owns: Owns, resource: ApiResource, namespace: str) -> Cache[Owned]:
        by_label = owns.by is OwnedBy.LABEL
        label = self._controller.settings.owner_label
        selection = Selection(namespace if resource.namespaced else "", label if by_label else "")
        cache = caches.get(resource, owned_view(label) if by_label else Owned, selection)

        def on_event(event: Event[Owned]) -> None:
            if by_label:
                self._add_all(mapping.keys_by_label(event, self._keys_by_id))
            else:
                self._add_all(mapping.keys_by_reference(event, self._resource))

        cache.subscribe(on_event)
        return cache

    def _subscribe_watch(self, caches: Caches, watch: Watch[Any], resource: ApiResource, namespace: str) -> Cache[Any]:
        selection = Selection(namespace if resource.namespaced else "", watch.labels, watch.fields)
        cache = caches.get(resource, watch.view, selection)
        cache.subscribe(
            lambda event: self._add_all(
                mapping.keys_by_mapper(event, watch.mapper, self._resource, self._primary.store)
            )
        )
        return cache

    def _on_primary(self, event: Event[V]) -> None:
        self._remember(event.ref)
        if mapping.is_relevant(event, self._controller.predicate):
            self._reconciler.add(event.ref)

    def _add_all(self, keys: Iterable[ObjectRef]) -> None:
        for key in keys:
            self._reconciler.add(key)

    def _remember(self, key: ObjectRef) -> None:
        self._keys_by_id[mapping.owner_id(self.name, key)] = key

    async def _resolve(self, kind: KindOf) -> ApiResource:
        if isinstance(kind, ApiResource):
            return kind
        group, version, name = kind

        async def find() -> ApiResource:
            self._client.discovery.invalidate()
            return await self._client.discovery.find(group, name, version)

        return await self._retry(find)

    async def _retry(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a call as soon as it succeeds."""
        retries = Retries(_START_BACKOFF, random.Random())  # noqa: S311 - jitter
        while True:
            try:
                return await call()
            except GovernorError as error:
                self.not_started = str(error)
                _log.warning("controller cannot start yet; retrying", controller=self.name, error=str(error))
                await self._clock.sleep(retries.next_delay_s())

    async def _add_orphans(self) -> None:
        """Add the owners of all inventories that do not exist: their deletion causes no event any more."""
        label = self._controller.settings.inventory_label
        namespace = self._environment.watch_namespace or self._controller.namespace
        place = namespace if self._resource.namespaced else self._environment.namespace
        async for each in self._client.list(CONFIG_MAPS, place, labels=label, metadata_only=True):
            key = mapping.key_of_inventory(self.name, self._resource, each, label)
            if key and key not in self._primary.store:
                self._remember(key)
                self._reconciler.add(key, Priority.RESYNC)

    async def _reconcile(self, key: ObjectRef) -> Outcome:
        entry = self._primary.store.get(key)
        if entry is None:
            return await self._finalize_absent(key)
        if isinstance(entry, Unreadable):
            reason = f"{key} does not fit {self._controller.view.__name__}: {entry.reason}"
            self._environment.recorder.record(
                self._resource, entry.metadata, EventType.WARNING, "Unreadable", entry.reason
            )
            return Stalled(reason)
        if self._controller.finalizer and isinstance(entry, Resource):
            return await self._reconcile_with_finalizer(key, entry)
        return await self._controller.reconcile(self._context(key, entry))

    async def _finalize_absent(self, key: ObjectRef) -> Outcome:
        if await self._exists(key):
            return Requeue(_STALE_CACHE_S)
        outcome = await self._controller.finalize(self._context(key, None))
        if not isinstance(outcome, Done):
            return outcome
        if self._controller.finalizer:
            await self._finalizer.remove(key)  # the object may exist and no longer match the selectors
        self._tools.status.forget(key)
        if key not in self._primary.store:
            self._keys_by_id.pop(mapping.owner_id(self.name, key), None)
        return outcome

    async def _exists(self, key: ObjectRef) -> bool:
        """Return whether the server has the object: a cache is not enough to delete what it owns."""
        fields = ",".join(each for each in (self._controller.fields, f"metadata.name={key.name}") if each)
        found = self._client.list(
            self._resource, key.namespace, labels=self._controller.labels, fields=fields, metadata_only=True
        )
        return any([True async for _ in found])

    async def _reconcile_with_finalizer(self, key: ObjectRef, view: Any) -> Outcome:
        metadata = view.metadata
        held = self._finalizer.holds(metadata)
        if not metadata.deletion_timestamp:
            if not held:
                await self._finalizer.add(metadata)
            return await self._controller.reconcile(self._context(key, view))
        if not held:
            return Done()  # the finalizers of others hold it
        outcome, left_s = await self._finalizer.run(
            key, view, lambda: self._controller.finalize(self._context(key, view))
        )
        if left_s > 0:
            self._reconciler.add_after(key, left_s, Priority.RETRY)
        return outcome

    def _context(self, key: ObjectRef, entry: Any) -> Context[Any]:
        owner = mapping.owner_of(self.name, key, self._environment.namespace)
        settings = self._controller.settings
        if not settings.default_namespace:
            settings = msgspec.structs.replace(settings, default_namespace=key.namespace)
        return Context(key, entry, ApplySet(self._client, owner, settings, self._clock), self._tools)

    def _log_outcome(self, key: ObjectRef, outcome: Outcome) -> None:
        match outcome:
            case Failed(error=error):
                _log.warning("reconcile failed", controller=self.name, key=str(key), error=str(error))
            case Stalled(reason=reason):
                _log.warning("reconcile stalled", controller=self.name, key=str(key), reason=reason)
            case _:
                _log.debug("reconciled", controller=self.name, key=str(key), outcome=type(outcome).__name__)
