"""The one road for writing to Kubernetes: a set of objects of one owner in one cluster.

What decides and what acts is in the modules beside this one; here it is put together.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.apply import Applying, Order, Writer
from governor.kube.applyset.diff import patterns_for
from governor.kube.applyset.drift import DriftMode, DriftReport, Memory, ObjectDrift, Repair
from governor.kube.applyset.entries import Entries, doomed, forgotten, is_applied, same_objects
from governor.kube.applyset.get import look, look_if_served
from governor.kube.applyset.inventory import Inventory, Stored
from governor.kube.applyset.manifests import KindKey, Wanted, check, expand, kinds_in
from governor.kube.applyset.order import Stage, in_stages, side_by_side, stage_of
from governor.kube.applyset.prune import Remover
from governor.kube.applyset.results import ApplyReport, ObjectResult, Outcome, Plan, RemovalReport
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client
from governor.kube.objects import ApiResource, ObjectRef
from governor.process.clock import Clock, SystemClock
from governor.values.paths import parse


class ApplySet:
    """The objects of one owner in one cluster; cheap to make, it keeps nothing between calls."""

    def __init__(self, client: Client, owner: Owner, settings: Settings, clock: Clock | None = None) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._clock = clock or SystemClock()
        self._inventory = Inventory(client, owner, settings)

    async def inventory(self) -> Entries:
        """What the set has written and not removed; PRECONDITION if the record is damaged or another owner's."""
        return (await self._inventory.read()).entries

    async def apply(self, manifests: Iterable[Any], *, full: bool = False) -> ApplyReport:
        """Write all objects whose manifest is not the one applied last, or with ``full`` all; nothing is removed.

        INVALID with all problems before anything is written; CONFLICT if another writer of the set was faster.
        """
        wanted = await self._wanted(manifests)
        stored = await self._inventory.read()
        due = [each for each in wanted if full or not is_applied(each, stored.entries)]
        results = await self._run([self._order(each) for each in due], stored) if due else {}
        return _report(wanted, results)

    async def prune(self, manifests: Iterable[Any], *, allow_empty: bool = False) -> RemovalReport:
        """Remove what the set has written and no longer wants; PRECONDITION if that would be everything."""
        wanted = {each.ref for each in await self._wanted(manifests)}
        stored = await self._inventory.read()
        if stored.entries and not wanted and not allow_empty:
            message = (
                f"the set of {self._owner.id!r} has {len(stored.entries)} objects and none of them is wanted any more; "
                "nothing was removed. If this is meant, say so"
            )
            raise GovernorError(Kind.PRECONDITION, "set-emptied", message)
        stored = await self._inventory.write(stored, doomed(stored.entries, wanted))
        report = await self._remove(stored, wanted)
        await self._inventory.write(stored, forgotten(stored.entries, report.results))
        return report

    async def remove_all(self, *, dry_run: bool = False) -> RemovalReport:
        """Remove every object of the set and then its inventory; as long as something stays, the inventory does."""
        stored = await self._inventory.read()
        if dry_run or not stored.uid:
            return await self._remove(stored, set(), dry_run=True)
        stored = await self._inventory.write(stored, doomed(stored.entries, ()))
        report = await self._remove(stored, set())
        if report.complete:
            await self._inventory.delete(stored)
        else:
            await self._inventory.write(stored, forgotten(stored.entries, report.results))
        return report

    async def forget(self) -> None:
        """Leave all objects where they are, and remove only the inventory."""
        stored = await self._inventory.read()
        if stored.uid:
            await self._inventory.delete(stored)

    async def plan(self, manifests: Iterable[Any], *, full: bool = False) -> Plan:
        """What ``apply`` and then ``prune`` would do; nothing is written.

        Not to be seen: fields that go only because their manager is taken over first.
        """
        wanted = await self._wanted(manifests)
        stored = await self._inventory.read()
        due = [each for each in wanted if full or not is_applied(each, stored.entries)]
        coming = await self._coming(due)
        writer = Writer(self._client, self._owner, self._settings, dry_run=True)

        async def planned(each: Wanted) -> ObjectResult:
            if each.ref in coming:
                return ObjectResult(each.ref, Outcome.CREATED, asked=False)
            return await writer.write(self._order(each), None)

        results = {result.ref: result for result in await side_by_side(due, planned, self._settings.at_once)}
        removal = await self._remove(stored, {each.ref for each in wanted}, dry_run=True)
        return Plan(_report(wanted, results), removal)

    async def drift(self, manifests: Iterable[Any], mode: DriftMode, repairs: Iterable[Repair] = ()) -> DriftReport:
        """What somebody changed or deleted; if enforced, set back. ``repairs`` are those of the last report."""
        if mode is DriftMode.OFF:
            return DriftReport(mode)
        wanted = await self._wanted(manifests)
        memory = Memory(repairs, self._settings, self._clock.now())

        async def compared(each: Wanted) -> ObjectDrift | None:
            return await self._compared(each, memory)

        found = [each for each in await side_by_side(wanted, compared, self._settings.at_once) if each]
        if mode is DriftMode.ENFORCE:
            found = await self._repaired(found, {each.ref: each for each in wanted})
        return DriftReport(mode, len(wanted), tuple(found), memory.after(found, (each.ref for each in wanted)))

    async def _wanted(self, manifests: Iterable[Any]) -> tuple[Wanted, ...]:
        numbered = expand(manifests)
        served: dict[KindKey, ApiResource] = {}
        missing = kinds_in(numbered)
        for again in (False, True):
            if missing and again:
                await self._client.discovery.require_ready()  # its definition may have come a moment ago
            for key in sorted(missing):
                if kind := await self._kind(key):
                    served[key] = kind
            missing -= served.keys()
        return check(numbered, served, self._owner, self._settings, self._inventory.holds)

    async def _kind(self, key: KindKey) -> ApiResource | None:
        group, version, kind = key
        try:
            return await self._client.discovery.find(group, kind, version)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None

    def _order(self, wanted: Wanted, *, force: bool = False) -> Order:
        ignored = patterns_for(wanted.ref, self._settings.ignored)
        return Order(wanted, ignored, force or self._settings.force)

    async def _run(self, orders: list[Order], stored: Stored) -> dict[ObjectRef, ObjectResult]:
        writer = Writer(self._client, self._owner, self._settings)
        return await Applying(self._client, self._inventory, writer, self._settings, self._clock).run(orders, stored)

    async def _remove(self, stored: Stored, wanted: set[ObjectRef], *, dry_run: bool = False) -> RemovalReport:
        remover = Remover(self._client, self._owner, self._settings, self._clock, dry_run=dry_run)
        kept = same_objects(stored.entries, wanted)
        spared = wanted.union(result.ref for result in kept)
        unwanted = [entry for ref, entry in sorted(stored.entries.items()) if ref not in spared]
        return RemovalReport((*kept, *await remover.remove(unwanted)))

    async def _coming(self, due: Iterable[Wanted]) -> set[ObjectRef]:
        """Objects that cannot be tried out yet: their namespace or their kind is still to be made."""
        due = tuple(due)
        spaces = [each for each in due if stage_of(each.ref) is Stage.NAMESPACES]
        absent = {each.ref.name for each in spaces if await look(self._client, each.resource, each.ref) is None}
        unserved = {
            kind for kind in {each.resource for each in due if each.defined_here} if not await self._serves(kind)
        }
        return {each.ref for each in due if each.ref.namespace in absent or each.resource in unserved}

    async def _serves(self, kind: ApiResource) -> bool:
        return await self._kind((kind.group, kind.version, kind.kind)) is not None

    async def _compared(self, wanted: Wanted, memory: Memory) -> ObjectDrift | None:
        looking = look_if_served if wanted.defined_here else look
        try:
            live = await looking(self._client, wanted.resource, wanted.ref)
            if live is None:
                return memory.deleted(wanted.ref)
            writer = Writer(self._client, self._owner, self._settings, dry_run=True)
            found = await writer.compare(self._order(wanted), live)
        except GovernorError as error:
            return ObjectDrift(wanted.ref, error=str(error))
        return memory.changed(wanted.ref, live, found) if found else None

    async def _repaired(self, drifts: list[ObjectDrift], wanted: dict[ObjectRef, Wanted]) -> list[ObjectDrift]:
        """Set back what is not left to others; only the objects that drifted are written."""
        orders = [self._repair(wanted[drift.ref], drift) for drift in drifts if drift.to_repair]
        if not orders:
            return drifts
        results = await self._run(orders, await self._inventory.read())
        return [msgspec.structs.replace(drift, repair=results.get(drift.ref)) for drift in drifts]

    def _repair(self, wanted: Wanted, drift: ObjectDrift) -> Order:
        order = self._order(wanted, force=True)
        left = tuple(parse(field.difference.path) for field in drift.fields if field.left)
        return msgspec.structs.replace(order, ignored=order.ignored + left)


def _report(wanted: Iterable[Wanted], results: dict[ObjectRef, ObjectResult]) -> ApplyReport:
    """All results in the order of writing; what has none was not asked for."""
    ordered = (each.ref for stage in in_stages(wanted, lambda each: each.ref) for each in stage)
    return ApplyReport(tuple(results.get(ref) or ObjectResult(ref, Outcome.UNCHANGED, asked=False) for ref in ordered))
