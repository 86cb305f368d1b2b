"""Writing one object: applied onto exactly what was seen before, and as often as that turned out to be outdated.

Where nothing was seen only a new object may be made, where one was seen only that very one be changed: an object that
somebody makes in between never becomes ours unseen.
"""

from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.conflicts import conflicts_of, outdated
from governor.kube.applyset.diff import comparable, differences
from governor.kube.applyset.get import is_terminating, look, waits_for
from governor.kube.applyset.ignored_fields import with_live, without
from governor.kube.applyset.managers import fields_of, moved
from governor.kube.applyset.manifests import Wanted
from governor.kube.applyset.ownership import becomes_ours, marked, owner_of
from governor.kube.applyset.results import ObjectResult, Outcome, failure_of
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Request
from governor.kube.objects import Object
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
