"""Writes the status of objects by server-side apply on the status subresource, and only if it changes.

The controller's own field manager owns what it writes, so that no write conflicts with another: a field that another
manager has set is taken over, fields and conditions that only others set are never touched.
"""

import datetime
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.controller.conditions import merge
from governor.kube.controller.views import Resource, Status
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.process.clock import Clock

R = TypeVar("R", bound=Resource)


def merge_status(previous: Status, desired: Status, generation: int, now: datetime.datetime) -> Status:
    """Return the desired status with generations and transition times filled in; pure."""
    conditions = merge(previous.conditions, desired.conditions, generation, now)
    return msgspec.structs.replace(desired, observed_generation=generation, conditions=conditions)


def is_changed(previous: Status, merged: Status) -> bool:
    """Return whether a merged status differs from the previous one, apart from conditions of other writers; pure."""
    before = {each.type: each for each in previous.conditions}
    own = tuple(before[each.type] for each in merged.conditions if each.type in before)
    return msgspec.structs.replace(previous, conditions=own) != merged


class _Written(msgspec.Struct, frozen=True):
    """The last status written, which the cache may not have yet; of an earlier term, its conditions."""

    uid: str
    resource_version: str
    status: Status


class StatusWriter:
    """Writes the status of the objects of one kind in one term of leadership."""

    def __init__(
        self,
        client: Client,
        resource: ApiResource,
        manager: str,
        clock: Clock,
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._is_leader = is_leader
        self._resource = resource
        self._manager = manager
        self._clock = clock
        self._written: dict[tuple[str, str], _Written] = {}

    async def write(self, view: Resource, status: Status) -> bool:
        """Write the status unless it is unchanged; return whether it was written."""
        metadata = view.metadata
        place = (metadata.namespace, metadata.name)
        written = self._written.get(place)
        if written and written.uid != metadata.uid:
            written = None
        if written is None and not _types(view.status) <= _types(status):
            written = self._written[place] = await self._read_written(view)
        is_cached = written is None or not _is_older(metadata.resource_version, written.resource_version)
        previous = view.status if written is None or is_cached else written.status
        merged = merge_status(previous, status, metadata.generation, self._clock.now())
        if not is_changed(previous, merged) and not _removes_condition(written, merged):
            return False
        if not self._is_leader():  # the process was paused, and another one leads: it may have written newer ones
            message = f"the status of {metadata.name} is not written: another process leads"
            raise GovernorError(Kind.UNAVAILABLE, "not-leading", message)
        response = await self._client.apply(
            self._resource, self._manifest(view, merged), manager=self._manager, force=True, subresource="status"
        )
        self._written[place] = _Written(metadata.uid, response["metadata"].get("resourceVersion", ""), merged)
        return True

    def latest(self, view: R) -> R:
        """Return an object with the status that was written last, if the cache does not have that yet."""
        written = self._written.get((view.metadata.namespace, view.metadata.name))
        if written is None or written.uid != view.metadata.uid or type(written.status) is not type(view.status):
            return view
        is_cached = not _is_older(view.metadata.resource_version, written.resource_version)
        return view if is_cached else msgspec.structs.replace(view, status=written.status)

    async def _read_written(self, view: Resource) -> _Written:
        """Return which of the conditions were written in an earlier term: the server knows the manager of each."""
        metadata = view.metadata
        live = await self._client.get(self._resource, metadata.name, metadata.namespace, metadata_only=True)
        own = _applied_types(live["metadata"].get("managedFields") or (), self._manager)
        conditions = tuple(each for each in view.status.conditions if each.type in own)
        return _Written(metadata.uid, metadata.resource_version, Status(conditions=conditions))

    def forget(self, key: ObjectRef) -> None:
        """Drop what is known of a deleted object."""
        self._written.pop((key.namespace, key.name), None)

    def _manifest(self, view: Resource, status: Status) -> dict[str, object]:
        # The uid prevents writing the status of a deleted object to a new one of the same name.
        metadata = {"name": view.metadata.name, "namespace": view.metadata.namespace, "uid": view.metadata.uid}
        return {
            "apiVersion": self._resource.api_version,
            "kind": self._resource.kind,
            "metadata": {name: value for name, value in metadata.items() if value},
            "status": msgspec.to_builtins(status),
        }


def _is_older(version: str, than: str) -> bool:
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


def _removes_condition(written: _Written | None, merged: Status) -> bool:
    """Return whether a condition that this controller wrote is no longer desired."""
    return written is not None and not _types(written.status) <= _types(merged)


def _types(status: Status) -> set[str]:
    return {each.type for each in status.conditions}


def _applied_types(managed_fields: Iterable[Object], manager: str) -> set[str]:
    """Return the types of the conditions that the manager applied, of which each is a ``k:{"type": ...}``."""
    applied = [each["fieldsV1"] for each in managed_fields if each["manager"] == manager]
    keys = {key for fields in applied for key in fields.get("f:status", {}).get("f:conditions", {})}
    return {msgspec.json.decode(key[2:])["type"] for key in keys if key.startswith("k:")}
