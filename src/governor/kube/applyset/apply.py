"""One run of writing: look, record what is about to be written, write stage by stage, record what was."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.diff import comparable, differences, with_live, without
from governor.kube.applyset.entries import Entries, Seen, intended, recorded
from governor.kube.applyset.get import is_terminating, look, look_if_served, waits_for
from governor.kube.applyset.inventory import Inventory, Stored
from governor.kube.applyset.manifests import Wanted, kinds_of_definition
from governor.kube.applyset.order import Stage, in_stages, side_by_side, stage_of
from governor.kube.applyset.ownership import becomes_ours, fields_of, marked, moved, owner_of
from governor.kube.applyset.results import GOOD, ObjectResult, Outcome, conflicts_of, failure_of, outdated
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Request
from governor.kube.objects import Object, ObjectRef
from governor.process.clock import Clock
from governor.values.paths import Path
from governor.values.treediff import Difference

_LOOKS: Final = 4
_ONLY_IF_ABSENT: Final = "1"
"""A version that no object has: the server takes it for an outdated one if there is an object, and else ignores it."""
_JSON_PATCH: Final = "application/json-patch+json"


class Order(msgspec.Struct, frozen=True):
    """One object to write."""

    wanted: Wanted
    ignored: tuple[Path, ...] = ()
    """Fields that keep their live values."""
    force: bool = False


class Writer:
    """Writes objects of one set; with ``dry_run`` the server only says what would happen."""

    def __init__(self, client: Client, owner: Owner, settings: Settings, *, dry_run: bool = False) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._dry_run = dry_run

    async def write(self, order: Order, live: Object | None) -> ObjectResult:
        """Write it onto what was last seen there; whatever befalls it is in the result."""
        ref = order.wanted.ref
        try:
            for _ in range(_LOOKS):
                try:
                    return await self._attempt(order, live)
                except GovernorError as error:
                    # A conflict where nothing was seen is about an object that nobody has looked at yet.
                    if not outdated(error) and not (live is None and error.kind is Kind.CONFLICT):
                        raise
                    last = error
                live = await look(self._client, order.wanted.resource, ref)
        except GovernorError as error:
            return failure_of(ref, error)
        return failure_of(ref, last)

    async def compare(self, order: Order, live: Object) -> tuple[Difference, ...]:
        """What writing it by force would change."""
        after = await self._apply(order, live, force=True, dry_run=True)
        return differences(without(live, order.ignored), without(after, order.ignored))

    async def _attempt(self, order: Order, live: Object | None) -> ObjectResult:
        ref = order.wanted.ref
        if live is not None and (obstacle := self._obstacle(order, live)):
            return obstacle
        ours = becomes_ours(live, self._owner, self._settings)
        now = live if live is None or self._dry_run else await self._take_over(order, live)
        after = await self._apply(order, now, force=order.force, dry_run=self._dry_run)
        shown = (
            differences(without(live, order.ignored), without(after, order.ignored)) if live and self._dry_run else ()
        )
        return ObjectResult(
            ref,
            self._outcome(live, after, shown),
            uid=str(after["metadata"]["uid"]),
            differences=shown,
            shared=not ours,
        )

    def _obstacle(self, order: Order, live: Object) -> ObjectResult | None:
        owner = owner_of(live, self._settings)
        if owner not in {"", self._owner.id}:
            text = f"belongs to {owner!r}; two sets cannot have one object, take it out of one of them"
            return ObjectResult(order.wanted.ref, Outcome.REFUSED, error=text)
        if is_terminating(live):
            return ObjectResult(
                order.wanted.ref, Outcome.FAILED, error=f"{waits_for(live)}; apply again when it is gone"
            )
        return None

    def _outcome(self, before: Object | None, after: Object, shown: tuple[Difference, ...]) -> Outcome:
        if before is None:
            return Outcome.CREATED
        if self._dry_run:
            return Outcome.CHANGED if shown else Outcome.UNCHANGED
        if before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]:
            return Outcome.UNCHANGED
        # Others write too: only what we changed counts.
        manager = self._settings.manager
        same = comparable(before) == comparable(after) and fields_of(before, manager) == fields_of(after, manager)
        return Outcome.UNCHANGED if same else Outcome.CHANGED

    async def _take_over(self, order: Order, live: Object) -> Object:
        """Move the fields of the managers to be taken over; with the label, so that no crash parts the two."""
        fields = moved(live, self._settings.take_over, self._settings.manager)
        if fields is None:
            return live
        labels = marked(live, self._owner, self._settings)["metadata"]["labels"]
        patch = [
            {"op": "replace", "path": "/metadata/managedFields", "value": fields},
            {"op": "add", "path": "/metadata/labels", "value": labels},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
        ]
        ref = order.wanted.ref
        request = Request(
            "PATCH",
            order.wanted.resource.path(ref.namespace, ref.name),
            {"fieldManager": self._settings.manager},
            msgspec.json.encode(patch),
            _JSON_PATCH,
        )
        taken: Object = msgspec.json.decode(await self._client.send(request))
        return taken

    async def _apply(self, order: Order, live: Object | None, *, force: bool, dry_run: bool) -> Object:
        manifest = self._manifest(order, live)
        resource, manager = order.wanted.resource, self._settings.manager
        try:
            return await self._client.apply(resource, manifest, manager=manager, force=force, dry_run=dry_run)
        except GovernorError as error:
            # What would be taken over first is no obstacle to a dry run.
            taken = {conflict.manager for conflict in conflicts_of(error)}
            if force or not (dry_run and live and taken and taken <= self._settings.take_over):
                raise
        return await self._client.apply(resource, manifest, manager=manager, force=True, dry_run=True)

    def _manifest(self, order: Order, live: Object | None) -> Object:
        manifest = order.wanted.manifest
        if becomes_ours(live, self._owner, self._settings):
            manifest = marked(manifest, self._owner, self._settings)
        if live is None:
            guard = {"resourceVersion": _ONLY_IF_ABSENT}
        else:
            manifest = with_live(manifest, live, order.ignored)
            guard = {"uid": live["metadata"]["uid"]}
        return {**manifest, "metadata": {**manifest["metadata"], **guard}}


_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...]


_decode: Final = msgspec.json.Decoder(_Resources).decode


async def await_served(client: Client, definition: Wanted, clock: Clock, within_s: float) -> str:
    """Wait until it is established and each version served; why not, or nothing if all are."""
    deadline = clock.monotonic() + within_s
    pause_s = _PAUSE_S
    while why := await _obstacle(client, definition):
        if clock.monotonic() >= deadline:
            return f"its kind is not served after {within_s:g} s: {why}"
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    client.discovery.invalidate()
    return ""


async def _obstacle(client: Client, definition: Wanted) -> str:
    try:
        live = await look(client, definition.resource, definition.ref)
        conditions = _conditions(live or {})
        if conditions.get("Established", {}).get("status") != "True":
            return str(conditions.get("NamesAccepted", {}).get("message") or "it is not established")
        for kind in kinds_of_definition(live):
            # Read from discovery, which everyone may read; listing objects may be forbidden.
            served = _decode(await client.send(Request("GET", f"/apis/{kind.group}/{kind.version}")))
            if kind.plural not in {each.name for each in served.resources}:
                return f"{kind.version} is not served yet"
    except GovernorError as error:
        # Not served yet is a 404; a server that cannot answer now may be able to in a moment.
        if error.kind in {Kind.DENIED, Kind.UNAUTHENTICATED}:
            raise
        return error.message
    return ""


def _conditions(live: Mapping[str, Any]) -> Mapping[str, Any]:
    return {each["type"]: each for each in (live.get("status") or {}).get("conditions") or ()}


class Applying:
    """Writes objects and keeps the inventory in step with them."""

    def __init__(self, client: Client, inventory: Inventory, writer: Writer, settings: Settings, clock: Clock) -> None:
        self._client = client
        self._inventory = inventory
        self._writer = writer
        self._settings = settings
        self._clock = clock

    async def run(self, orders: Sequence[Order], stored: Stored) -> dict[ObjectRef, ObjectResult]:
        """Write all of a stage, whatever becomes of single objects; later stages only if all of it succeeded."""
        due = [order.wanted for order in orders]
        seen = await self._look(due, stored.entries)
        stored = await self._inventory.write(stored, intended(stored.entries, due, seen))
        results: dict[ObjectRef, ObjectResult] = {}
        for stage in in_stages(orders, lambda order: order.wanted.ref):
            failed = next((result.ref for result in results.values() if result.outcome not in GOOD), None)
            results |= _skipped(stage, failed) if failed else await self._stage(stage, seen)
        await self._inventory.write(stored, recorded(stored.entries, due, results))
        return results

    async def _look(self, due: Sequence[Wanted], entries: Entries) -> Seen:
        """What there is of the objects that the inventory knows; others are taken for new until the server objects."""
        known = [wanted for wanted in due if wanted.ref in entries and entries[wanted.ref].uid]
        found = await side_by_side(known, self._seen, self._settings.at_once)
        return {wanted.ref: live for wanted, live in zip(known, found, strict=True)}

    async def _seen(self, wanted: Wanted) -> Object | GovernorError | None:
        looking = look_if_served if wanted.defined_here else look
        try:
            return await looking(self._client, wanted.resource, wanted.ref)
        except GovernorError as error:
            return error

    async def _stage(self, stage: Sequence[Order], seen: Seen) -> dict[ObjectRef, ObjectResult]:
        async def write(order: Order) -> ObjectResult:
            live = seen.get(order.wanted.ref)
            if isinstance(live, GovernorError):
                return failure_of(order.wanted.ref, live)
            result = await self._writer.write(order, live)
            return await self._served(order.wanted, result)

        return {result.ref: result for result in await side_by_side(stage, write, self._settings.at_once)}

    async def _served(self, wanted: Wanted, result: ObjectResult) -> ObjectResult:
        if stage_of(wanted.ref) is not Stage.DEFINITIONS or result.outcome not in GOOD:
            return result
        try:
            why = await await_served(self._client, wanted, self._clock, self._settings.served_within_s)
        except GovernorError as error:
            return failure_of(wanted.ref, error)
        return ObjectResult(wanted.ref, Outcome.FAILED, error=why) if why else result


def _skipped(stage: Sequence[Order], failed: ObjectRef) -> dict[ObjectRef, ObjectResult]:
    return {
        order.wanted.ref: ObjectResult(
            order.wanted.ref, Outcome.SKIPPED, error=f"{failed} has to succeed first", asked=False
        )
        for order in stage
    }
