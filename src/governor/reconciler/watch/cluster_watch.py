"""The watches of one target cluster: its inventories, the kinds that they name, and autoscalers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, TypeVar

from governor.kube.applyset import Settings
from governor.kube.applyset.inventory import CONFIG_MAPS
from governor.kube.client import Client
from governor.kube.controller.views import readable
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.readiness.kinds import GroupKind
from governor.kube.reflector import Added, Event, Reflector, Removed, Unreadable, View
from governor.process.clock import Clock
from governor.reconciler.watch.autoscalers import (
    HORIZONTAL_POD_AUTOSCALERS,
    SCALED_OBJECTS,
    Autoscaler,
    is_scalable,
)
from governor.reconciler.watch.blockers import Blockers
from governor.reconciler.watch.inventories import InventoryState, inventory_view, oldest
from governor.reconciler.watch.kind_watch import KindName, KindWatch, OnFailure
from governor.reconciler.watch.objects import ObjectState, is_metadata_enough, object_view

V = TypeVar("V", bound=View)

_BY_OWNER: Final = "owner"
_BY_TARGET: Final = "target"
_DEFINITIONS: Final[GroupKind] = ("apiextensions.k8s.io", "CustomResourceDefinition")


class ClusterWatch:
    """What is known of one cluster. Inventories are those of one namespace; no method sends a request.

    ``on_change`` is called with the name of a module when something of it may have changed. It must not block.
    """

    def __init__(
        self, client: Client, settings: Settings, namespace: str, clock: Clock, on_change: Callable[[str], None]
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._inventories = Reflector(
            client,
            CONFIG_MAPS,
            inventory_view(settings.inventory_label),
            clock=clock,
            on_event=self._on_inventory,
            namespace=namespace,
            labels=settings.inventory_label,
            indexes={_BY_OWNER: lambda inventory: (inventory.owner,)},
        )
        self._named: Counter[GroupKind] = Counter()
        self._followed: set[GroupKind] = set()
        self._kinds: dict[GroupKind, KindWatch[ObjectState]] = {}
        self._autoscalers: dict[KindName, KindWatch[Autoscaler]] = {}
        self.blockers = Blockers(client, clock, on_change)
        """What modules are refused by."""
        self._retried: set[str] = set()
        """Modules whose failed change is repeated later, whatever their own writes are."""
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[KindName, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for watch in self._kinds.values():
                self._start(watch)
            group.create_task(self._inventories.run())
            group.create_task(self.blockers.run())

    async def synced(self) -> None:
        """Wait until inventories are listed, and every kind that they name.

        A kind that is not served, or that the API server refuses to list, is not waited for (``is_known``).
        """
        await self._inventories.synced()
        while watch := next((each for each in self._watches() if not each.is_settled), None):
            await watch.settled()

    @property
    def problem(self) -> str:
        """Why something is not known, or ``""``."""
        if not self._inventories.is_synced:
            return self._inventories.last_error
        return next((each.problem for each in self._watches() if each.problem), "")

    def follow(self, kinds: Iterable[ApiResource]) -> None:
        """Watch kinds before an inventory names them, and until none does."""
        for kind in {(each.group, each.kind) for each in kinds}:
            if not self._named[kind]:
                self._followed.add(kind)
            self._add(kind)
        self._look_for_absent()

    def expect_retry(self, module: str, *, is_due: bool) -> None:
        """Say whether the change of a module has failed and is repeated later.

        Then changes of its inventory, and kinds that become known, are not reported: each attempt causes both itself.
        """
        if is_due:
            self._retried.add(module)
        else:
            self._retried.discard(module)

    def inventory(self, owner: str) -> InventoryState | None:
        """Return the inventory of an apply set, the oldest if there are several; None if there is none."""
        return oldest(filter(None, map(readable, self._inventories.store.find(_BY_OWNER, owner))))

    def owners(self) -> Collection[str]:
        """Return the ids of all apply sets that have an inventory."""
        return {each.owner for each in self._readable_inventories()}

    def state(self, ref: ObjectRef) -> ObjectState | None:
        """Return the state of an object; None if none of this name has the owner label, or ``is_known`` is false."""
        watch = self._kinds.get((ref.group, ref.kind))
        entry = watch.objects.get(ref) if watch else None
        return None if isinstance(entry, Unreadable) else entry

    def is_known(self, ref: ObjectRef) -> bool:
        """Return whether the state of an object is known: its kind is listed, or not served."""
        watch = self._kinds.get((ref.group, ref.kind))
        return watch is not None and watch.is_known and not isinstance(watch.objects.get(ref), Unreadable)

    def is_unwatchable(self, ref: ObjectRef) -> bool:
        """Return whether the API server refuses to list the kind: its objects can only be read one by one."""
        watch = self._kinds.get((ref.group, ref.kind))
        return watch is not None and watch.is_settled and not watch.is_known

    def is_autoscaled(self, ref: ObjectRef) -> bool:
        """Return whether a HorizontalPodAutoscaler or ScaledObject scales this workload."""
        return any(each.find(_BY_TARGET, ref) for each in self._autoscalers.values())

    def _watches(self) -> Iterator[KindWatch[Any]]:
        yield from self._kinds.values()
        yield from self._autoscalers.values()

    def _readable_inventories(self) -> Iterator[InventoryState]:
        return filter(None, map(readable, self._inventories.store.values()))

    def _on_inventory(self, event: Event[InventoryState]) -> None:
        old, new = _views(event)
        before, after = (each.kinds() if each else frozenset() for each in (old, new))
        self._named.update(after)
        self._named.subtract(before)
        self._followed -= after
        for kind in after - before:
            self._add(kind)
        for kind in before - after:
            self._remove(kind)
        self._look_for_absent()
        self._notify((each.owner for each in (old, new) if each), is_own=old is not None and new is not None)

    def _on_object(self, event: Event[ObjectState]) -> None:
        if (event.ref.group, event.ref.kind) == _DEFINITIONS:
            self._on_definition(event.ref)
        self._notify(each.owner for each in _views(event) if each)

    def _on_definition(self, ref: ObjectRef) -> None:
        """Look up the kinds of a definition's group again: how they are served may have changed."""
        group = ref.name.partition(".")[2]
        for watch in self._watches():
            if watch.name.group == group:
                watch.look_again()

    def _on_autoscaler(self, event: Event[Autoscaler]) -> None:
        targets = (self.state(each.target) for each in _views(event) if each)
        self._notify(each.owner for each in targets if each)

    def _on_known(self, kind: GroupKind) -> None:
        self._notify((each.owner for each in self._readable_inventories() if kind in each.kinds()), is_own=True)

    def _notify(self, owners: Iterable[str], *, is_own: bool = False) -> None:
        """Report the modules of some owners; ``is_own`` if an attempt to apply them causes that itself."""
        for module in {module_of(each) for each in owners if each} - (self._retried if is_own else set()):
            self._on_change(module)

    def _look_for_absent(self) -> None:
        for watch in self._watches():
            if watch.is_absent:
                watch.look_again()

    def _add(self, kind: GroupKind) -> None:
        if kind in self._kinds:
            return
        name = KindName(*kind)
        watch = KindWatch(self._client, name, self._reflect_objects, self._clock, lambda: self._on_known(kind))
        self._kinds[kind] = watch
        self._start(watch)

    def _remove(self, kind: GroupKind) -> None:
        if self._named[kind] or kind in self._followed:
            return
        del self._named[kind]
        self._stop(self._kinds.pop(kind))
        if not any(each.resource and is_scalable(each.resource) for each in self._kinds.values()):
            self._stop_autoscalers()

    def _start_autoscalers(self) -> None:
        for name in (HORIZONTAL_POD_AUTOSCALERS, SCALED_OBJECTS):
            if name not in self._autoscalers:
                watch = KindWatch(self._client, name, self._reflect_autoscalers, self._clock, lambda: None)
                self._autoscalers[name] = watch
                self._start(watch)

    def _stop_autoscalers(self) -> None:
        for watch in self._autoscalers.values():
            self._stop(watch)
        self._autoscalers.clear()

    def _start(self, watch: KindWatch[Any]) -> None:
        if self._group:
            self._tasks[watch.name] = self._group.create_task(watch.run())

    def _stop(self, watch: KindWatch[Any]) -> None:
        watch.close()
        if task := self._tasks.pop(watch.name, None):
            task.cancel()

    def _reflect_objects(self, resource: ApiResource, on_failure: OnFailure) -> Reflector[ObjectState]:
        if is_scalable(resource):
            self._start_autoscalers()
        label = self._settings.owner_label
        return Reflector(
            self._client,
            resource,
            object_view(resource, label),
            clock=self._clock,
            on_event=self._on_object,
            labels=label,
            metadata_only=is_metadata_enough(resource),
            on_failure=on_failure,
        )

    def _reflect_autoscalers(self, resource: ApiResource, on_failure: OnFailure) -> Reflector[Autoscaler]:
        return Reflector(
            self._client,
            resource,
            Autoscaler,
            clock=self._clock,
            on_event=self._on_autoscaler,
            indexes={_BY_TARGET: lambda autoscaler: (autoscaler.target,)},
            on_failure=on_failure,
        )


def module_of(owner: str) -> str:
    """Return the module that an apply set belongs to; it may have several, such as ``dapr`` and ``dapr.hooks``."""
    return owner.partition(".")[0]


def _views(event: Event[V]) -> tuple[V | None, V | None]:
    """Return the views before and after an event."""
    old = None if isinstance(event, Added) else readable(event.old)
    new = None if isinstance(event, Removed) else readable(event.new)
    return old, new
