"""The work of one term of leadership. Nothing is kept from an earlier term, whose cancelled work is repeated.

For each controller: resolve its kinds, start its caches, wait until they are complete, find the owners that were
deleted while no watch ran, and only then reconcile.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from governor.errors import GovernorError
from governor.kube.controller import mapping
from governor.kube.controller.caches import Cache, Caches, Selection
from governor.kube.controller.controller import Controller, KindOf, OwnedBy, Owns, Source, Watch
from governor.kube.controller.mapping import NamespacedName
from governor.kube.controller.reconciliation import Environment, Reconciliation
from governor.kube.controller.views import Owned, owned_view
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector import Event, Store, View
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.reconcile.fair_queue import Priority
from governor.process.reconcile.reconciler import Done, Failed, Outcome, Reconciler, Stalled
from governor.process.reconcile.resync import Resync
from governor.process.telemetry import logging

_START_BACKOFF: Final = Backoff(initial_s=0.2, max_s=30.0)
V = TypeVar("V", bound=View)
Result = TypeVar("Result")
_log = logging.get_logger(__name__)


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
        reasons = {run.name: run.not_started() for run in self._runs}
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)

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
        self._namespace = controller.namespace or environment.watch_namespace
        self._client = environment.client
        self._clock = environment.clock
        self._keys_by_id: dict[str, ObjectRef] = {}
        self._reconciler = Reconciler[ObjectRef](
            self._run,
            name=controller.name,
            metrics=environment.metrics,
            clock=environment.clock,
            backoff=controller.backoff,
            workers=controller.workers,
            timeout_s=controller.timeout_s,
            group_of=controller.group_of,
            on_outcome=self._on_outcome,
        )
        self._caches: list[Cache[Any]] = []
        self._stores: dict[type[View], Store[Any]] = {}
        self._step = "resolving its kinds"

    @property
    def name(self) -> str:
        """The name of the controller."""
        return self._controller.name

    def not_started(self) -> str:
        """Return why it does not reconcile yet, or ``""``."""
        errors = {each.reflector.last_error for each in self._caches if not each.reflector.is_synced} - {""}
        return ": ".join([self._step, *sorted(errors)]) if self._step else ""

    async def run(self, caches: Caches) -> None:
        """Start the caches, wait for them, then reconcile until cancelled or shut down."""
        await self._start(caches)
        self._step = "listing its objects"
        for cache in self._caches:
            await cache.reflector.synced()
        self._step = "listing the inventories"
        await self._retry(lambda: self._add_orphans(caches))
        self._step = ""
        _log.info("controller started", controller=self.name, objects=len(self._primary.store))
        resync = Resync(
            lambda: tuple(self._primary.store),
            self._reconciler.add,
            self._environment.resync_s,
            clock=self._clock,
        )
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(each) for each in (resync.run(), *map(self._follow, self._controller.sources))]
            await self._reconciler.run()
            for each in beside:
                each.cancel()

    async def shut_down(self) -> None:
        """Start no more keys and let the running ones finish."""
        await self._reconciler.shut_down(self._environment.grace_s)

    async def _start(self, caches: Caches) -> None:
        controller = self._controller
        self._resource = await self._resolve(controller.kind)
        resolved = [(owns, await self._resolve(owns.kind)) for owns in controller.owned]
        watched = [(watch, await self._resolve(watch.kind)) for watch in controller.watched]
        selection = Selection(
            self._namespace if self._resource.namespaced else "", controller.labels, controller.fields
        )
        self._primary = caches.get(self._resource, controller.view, selection, controller.indexes)
        self._reconciliation = Reconciliation(
            controller,
            self._environment,
            self._resource,
            self._primary.store,
            self._stores,
            lambda key, seconds: self._reconciler.add_after(key, seconds, Priority.RETRY),
        )
        self._caches.append(self._primary)
        self._primary.subscribe(self._on_primary)
        for owns, resource in resolved:
            self._caches.append(self._subscribe_owned(caches, owns, resource))
        for watch, resource in watched:
            self._caches.append(self._subscribe_watch(caches, watch, resource))

    def _subscribe_owned(self, caches: Caches, owns: Owns, resource: ApiResource) -> Cache[Owned]:
        by_label = owns.by is OwnedBy.LABEL
        label = self._controller.settings.owner_label
        selection = Selection(self._namespace if resource.namespaced else "", label if by_label else "")
        cache = caches.get(resource, owned_view(label) if by_label else Owned, selection)

        def on_event(event: Event[Owned]) -> None:
            if by_label:
                self._add_known(mapping.keys_by_label(event, self._keys_by_id))
            else:
                self._add_known(mapping.keys_by_reference(event, self._resource))

        cache.subscribe(on_event)
        return cache

    def _subscribe_watch(self, caches: Caches, watch: Watch[Any], resource: ApiResource) -> Cache[Any]:
        selection = Selection(self._namespace if resource.namespaced else "", watch.labels, watch.fields)
        cache = caches.get(resource, watch.view, selection, watch.indexes)
        self._stores[watch.view] = cache.store

        def on_event(event: Event[Any]) -> None:
            if mapping.is_watched(event, watch.predicate):
                keys = mapping.keys_by_mapper(event, watch.mapper, self._resource, self._primary.store)
                self._add_known(keys)

        cache.subscribe(on_event)
        return cache

    def _on_primary(self, event: Event[V]) -> None:
        self._remember(event.ref)
        if mapping.is_relevant(event, self._controller.predicate):
            self._reconciler.add(event.ref)

    async def _follow(self, source: Source) -> None:
        def add(name: NamespacedName) -> None:
            self._add_known([ObjectRef(self._resource.group, self._resource.kind, name.namespace, name.name)])

        await source(add)

    def _add_known(self, keys: Iterable[ObjectRef]) -> None:
        """Add the keys that the controller has or had in its cache; unknown keys must not be finalized."""
        for key in keys:
            if key in self._primary.store or mapping.owner_id(self.name, key) in self._keys_by_id:
                self._reconciler.add(key)

    def _remember(self, key: ObjectRef) -> None:
        self._keys_by_id[mapping.owner_id(self.name, key)] = key

    async def _resolve(self, kind: KindOf) -> ApiResource:
        if isinstance(kind, ApiResource):
            return kind
        group, version, name = kind

        async def find() -> ApiResource:
            try:
                return await self._client.discovery.find(group, name, version)
            except GovernorError:
                self._client.discovery.invalidate()
                raise

        return await self._retry(find)

    async def _retry(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat a call with backoff until it succeeds, and return its result."""
        retries = Retries(_START_BACKOFF, random.Random())  # noqa: S311 - jitter
        while True:
            try:
                return await call()
            except GovernorError as error:
                self._step = str(error)
                _log.warning("controller cannot start yet; retrying", controller=self.name, error=str(error))
                await self._clock.sleep(retries.next_delay_s())

    async def _add_orphans(self, caches: Caches) -> None:
        """Add the owners that no longer exist but have an inventory: no event announces their deletion any more."""
        label = self._controller.settings.inventory_label
        place = self._namespace if self._resource.namespaced else self._environment.namespace
        for each in await caches.inventories(place, label):
            key = mapping.key_of_inventory(self.name, self._resource, each, label)
            if key and key not in self._primary.store:
                self._remember(key)
                self._reconciler.add(key, Priority.RESYNC)

    async def _run(self, key: ObjectRef) -> Outcome:
        return await self._reconciliation.run(key)

    def _on_outcome(self, key: ObjectRef, outcome: Outcome) -> None:
        match outcome:
            case Done() if key not in self._primary.store:
                self._keys_by_id.pop(mapping.owner_id(self.name, key), None)
            case Failed(error=error):
                _log.warning("reconcile failed", controller=self.name, key=str(key), error=str(error))
            case Stalled(reason=reason):
                _log.warning("reconcile stalled", controller=self.name, key=str(key), reason=reason)
            case _:
                _log.debug("reconciled", controller=self.name, key=str(key), outcome=type(outcome).__name__)
