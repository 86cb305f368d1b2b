"""One run for one key: which function of the controller is called with which object, and what guards a deletion."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from governor.kube.applyset import ApplySet
from governor.kube.client import Client
from governor.kube.controller import mapping
from governor.kube.controller.context import Context, Tools
from governor.kube.controller.controller import Controller
from governor.kube.controller.events import EventRecorder, EventType
from governor.kube.controller.finalizer import Finalizer
from governor.kube.controller.status import StatusWriter
from governor.kube.controller.views import Resource
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector import Entry, Store, Unreadable, View
from governor.process.clock import Clock
from governor.process.reconcile.reconciler import Done, Outcome, ReconcileMetrics, Stalled, Waiting

V = TypeVar("V", bound=View)


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
    is_leader: Callable[[], bool] = lambda: True
    """Whether this process still leads, even right after it was paused."""


class Reconciliation(Generic[V]):
    """The runs of one controller in one term."""

    def __init__(
        self,
        controller: Controller[V],
        environment: Environment,
        resource: ApiResource,
        store: Store[V],
        stores: Mapping[type[View], Store[Any]],
        add_after: Callable[[ObjectRef, float], None],
    ) -> None:
        self._controller = controller
        self._environment = environment
        self._client = environment.client
        self._resource = resource
        self._store = store
        self._add_after = add_after
        self._finalized: dict[ObjectRef, str] = {}
        """Uids of the objects whose finalizer was removed: there is nothing left to finalize when they are gone."""
        clock, manager = environment.clock, controller.settings.manager
        status = StatusWriter(self._client, resource, f"{manager}-status", clock, environment.is_leader)
        self._tools = Tools(self._client, resource, environment.recorder, status, stores, {}, controller.recheck_s)
        self._finalizer = Finalizer(
            controller.finalizer, controller.finalizer_timeout_s, f"{manager}-finalizer", self._tools, clock
        )

    async def run(self, key: ObjectRef) -> Outcome:
        """Reconcile an object that exists, finalize one that is deleted, and change nothing for an unreadable one."""
        entry = self._store.get(key)
        if not mapping.has_inventory_name(self._controller.name, key):
            return await self._reject(key, entry)
        if entry is None:
            return await self._finalize_absent(key)
        if isinstance(entry, Unreadable):
            return self._stall(key, entry)
        if isinstance(entry, Resource):
            return await self._run_resource(key, entry)
        return await self._controller.reconcile(self._context(key, entry))

    def _stall(self, key: ObjectRef, entry: Unreadable[V]) -> Outcome:
        """Report an unreadable object; it is reconciled as soon as it is readable."""
        self._tools.recorder.record(self._resource, entry.metadata, EventType.WARNING, "Unreadable", entry.reason)
        return Stalled(f"{key} does not fit {self._controller.view.__name__}: {entry.reason}")

    async def _reject(self, key: ObjectRef, entry: Entry[V] | None) -> Outcome:
        """Report an object whose name is too long; nothing was done for it, so that nothing is to be finalized."""
        if entry is None:
            return Done()
        if isinstance(entry, Resource) and entry.metadata.deletion_timestamp:
            if self._finalizer.holds(entry.metadata):
                await self._finalizer.remove(key)
            return Done()
        reason = f"the name {self._controller.name}-{key.name} of its inventory is too long; shorten that of the object"
        self._tools.recorder.record(self._resource, entry.metadata, EventType.WARNING, "NameTooLong", reason)
        return Stalled(reason)

    async def _run_resource(self, key: ObjectRef, view: Any) -> Outcome:
        held = self._finalizer.holds(view.metadata)
        if view.metadata.deletion_timestamp:
            # If others hold it, reconciling would re-create what is being deleted.
            return await self._finalize(key, view) if held else Done()
        self._finalized.pop(key, None)
        if self._controller.finalizer and not held:
            await self._finalizer.add(view.metadata)
        return await self._controller.reconcile(self._context(key, view))

    async def _finalize(self, key: ObjectRef, view: Any) -> Outcome:
        if self._finalized.get(key) == view.metadata.uid:
            return Done()  # the watch has not delivered the removal yet
        context = self._context(key, view)
        outcome, left_s = await self._finalizer.run(key, view, lambda: self._controller.finalize(context))
        if isinstance(outcome, Done):
            self._finalized[key] = view.metadata.uid
        elif left_s > 0:
            self._add_after(key, left_s)
        return outcome

    async def _finalize_absent(self, key: ObjectRef) -> Outcome:
        if self._finalized.pop(key, None):
            self._tools.status.forget(key)
            return Done()
        if await self._exists(key):
            return Waiting(f"{key} exists, but its watch has not delivered it yet", self._controller.recheck_s)
        outcome = await self._controller.finalize(self._context(key, None))
        if isinstance(outcome, Done):
            self._tools.status.forget(key)
            if self._controller.finalizer:
                await self._finalizer.remove(key)  # the object may exist and no longer match the selectors
        return outcome

    async def _exists(self, key: ObjectRef) -> bool:
        """Return whether the server has the object: its absence from a cache is not enough to delete what it owns."""
        fields = ",".join(each for each in (self._controller.fields, f"metadata.name={key.name}") if each)
        found = self._client.list(
            self._resource, key.namespace, labels=self._controller.labels, fields=fields, metadata_only=True
        )
        return any([True async for _ in found])

    def _context(self, key: ObjectRef, view: Any) -> Context[Any]:
        owner = mapping.owner_of(self._controller.name, key, self._environment.namespace)
        if isinstance(view, Resource):
            view = self._tools.status.latest(view)
        settings = self._controller.settings
        if not settings.default_namespace:
            settings = msgspec.structs.replace(settings, default_namespace=key.namespace)
        return Context(key, view, ApplySet(self._client, owner, settings, self._environment.clock), self._tools)
