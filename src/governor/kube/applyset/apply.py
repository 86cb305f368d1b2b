"""One run of writing: look, record what is about to be written, write stage by stage, record what was."""

from collections.abc import Sequence

from governor.errors import GovernorError
from governor.kube.applyset.bookkeeping import Seen, intended, recorded
from governor.kube.applyset.definitions import await_served
from governor.kube.applyset.entries import Entries
from governor.kube.applyset.get import look, look_if_served
from governor.kube.applyset.inventory import Inventory, Stored
from governor.kube.applyset.manifests import Wanted
from governor.kube.applyset.order import Stage, in_stages, stage_of
from governor.kube.applyset.parallel import side_by_side
from governor.kube.applyset.results import GOOD, ObjectResult, Outcome, failure_of
from governor.kube.applyset.settings import Settings
from governor.kube.applyset.writer import Order, Writer
from governor.kube.client import Client
from governor.kube.objects import Object, ObjectRef
from governor.process.clock import Clock


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
