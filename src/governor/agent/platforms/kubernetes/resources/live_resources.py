"""The resources of a runtime as they are in the cluster, and what else in its namespaces concerns them. Only reads."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.resources.additions import additions, alterations, contains, last_change
from governor.agent.platforms.kubernetes.resources.foreign import KINDS, ForeignResource, foreign_resource
from governor.agent.platforms.kubernetes.resources.manifests import Manifests, referenced_secrets
from governor.domain.dapr.kinds import GROUP
from governor.domain.documents import Drift, ResourceRef
from governor.errors import Kind
from governor.kube.applyset import Entries, Owner, Settings
from governor.kube.applyset.live import find_kinds, get, is_terminating, managers_of, owner_of
from governor.kube.applyset.order import gather_bounded
from governor.kube.client import Client
from governor.kube.client.client import JSON_PATCH
from governor.kube.errors import ApiError
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.values.digest import digest
from governor.values.paths import render
from governor.values.trees import Manifest, named_path

_FOREIGN: Final = {(GROUP, "v1alpha1", kind) for kind in KINDS}
_CONFIG_MAPS: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
_READERS: Final = ("Component", "Configuration", "HTTPEndpoint", "MCPServer")
"""Kinds that may refer to Secrets."""
_FIELDS: Final = ("apiVersion", "kind", "spec", "scopes", "auth")
_REFUSED: Final = frozenset({Kind.INVALID, Kind.DENIED, Kind.NOT_FOUND})
"""Errors of a dry run that the write explains."""


class LiveVersion(msgspec.Struct, frozen=True):
    """The version of an object in the cluster, and when any client last changed it, by the API server's clock.

    ``version`` is another one after each change of its content; empty if drift of it is ignored.
    """

    written: datetime
    version: str
    uid: str


class LiveResource(LiveVersion, frozen=True, kw_only=True):
    """A resource of the runtime in the cluster."""

    manifest: Manifest


class LiveResources:
    """Reads the resources of one runtime in its namespaces. ``owner`` and ``settings`` are those of its apply set."""

    def __init__(self, client: Client, owner: Owner, settings: Settings, namespaces: Sequence[str]) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings
        self._namespaces = tuple(namespaces)
        self._confirmed: dict[ResourceRef, tuple[str, str]] = {}
        """The digest of the manifest that an object has the content of, with the version of the object."""
        self.suspects: frozenset[ObjectRef] = frozenset()
        """The objects that were not stored as they were applied, when they were last compared."""

    @property
    def labels(self) -> str:
        """The selector of the runtime's objects."""
        return f"{self._settings.owner_label}={self._owner.id}"

    async def own(self, manifests: Manifests, entries: Entries, drift: Drift) -> dict[ResourceRef, LiveResource]:
        """Return the runtime's resources; ``entries`` are those of the inventory.

        One that is still as this delivery was applied is returned as in the delivery; others have the defaults of the
        server too. Where drift is not repaired, one that was applied counts as in the delivery, whatever it is now.
        """
        objects = manifests.objects
        found: dict[ResourceRef, LiveResource] = {}
        for live in await self._own_objects(manifests, entries):
            ref = resource_ref(ref_of(live))
            now = live_version(live)
            if ref in objects and self._is_as_applied(live, objects[ref], entries):
                found[ref] = LiveResource(now.written, now.version, now.uid, manifest=manifests.resources[ref])
            elif ref in objects and drift is not Drift.ENFORCE and _was_applied(objects[ref], live, entries):
                found[ref] = LiveResource(now.written, "", now.uid, manifest=manifests.resources[ref])
            elif ref not in objects or objects[ref]["apiVersion"] == live["apiVersion"]:
                found[ref] = LiveResource(now.written, now.version, now.uid, manifest=self._content(live))
        return found

    async def adoptable(self, manifests: Manifests, own: Collection[ResourceRef]) -> dict[ResourceRef, LiveResource]:
        """Return the resources of a delivery that others own and that the settings adopt, with one list per kind.

        One that is as delivered, so that its adoption changes nothing that a sidecar loads, is returned as in the
        delivery.
        """
        wanted = {ref: each for ref, each in manifests.resources.items() if ref not in own}
        if not wanted or not self._settings.adopted_managers:
            return {}
        found: dict[ResourceRef, LiveResource] = {}
        for resource in (await find_kinds(self._client, _kinds_of(wanted.values()))).values():
            for namespace in sorted({ref.namespace for ref in wanted if ref.kind == resource.kind}):
                async for live in self._client.list(resource, namespace):
                    ref = resource_ref(ref_of(live))
                    if ref in wanted and wanted[ref]["apiVersion"] == live["apiVersion"] and self._is_adoptable(live):
                        is_same = await self._is_as_delivered(resource, live, wanted[ref])
                        now = live_version(live)
                        content = wanted[ref] if is_same else self._content(live)
                        found[ref] = LiveResource(now.written, now.version, now.uid, manifest=content)
        return found

    async def _is_as_delivered(self, resource: ApiResource, live: Object, delivered: Manifest) -> bool:
        """Return whether an object has exactly the delivered content, apart from the server's defaults.

        The server decides: in a dry run that replaces the content, the generation rises if that is a change.
        """
        ref, given, present = ref_of(live), _loaded(delivered), _loaded(live)
        added = [{"op": "add", "path": f"/{key}", "value": value} for key, value in given.items()]
        removed = [{"op": "remove", "path": f"/{key}"} for key in present if key not in given]
        manager, change = self._settings.manager, [*added, *removed]
        try:
            after = await self._client.patch(
                resource, ref.name, ref.namespace, change, manager=manager, content_type=JSON_PATCH, dry_run=True
            )
        except ApiError as error:
            if error.kind not in _REFUSED:
                raise
            return False
        return bool(after["metadata"]["generation"] == live["metadata"]["generation"])

    def _is_adoptable(self, live: Object) -> bool:
        is_free = not owner_of(live, self._settings) and not is_terminating(live)
        return is_free and bool(managers_of(live) & self._settings.adopted_managers)

    async def foreign_resources(
        self, namespaces: Collection[str], own: Collection[ResourceRef], *, cached: bool = False
    ) -> tuple[ForeignResource, ...]:
        """Return what others have in some namespaces of the kinds that concern counters, with one list for each.

        ``own`` are the agent's resources. With ``cached`` those of others may be older than the last write.
        """

        async def read(place: tuple[ApiResource, str]) -> list[ForeignResource]:
            listed = self._client.list(*place, cached=cached)
            return [foreign_resource(each) async for each in listed if resource_ref(ref_of(each)) not in own]

        served = (await find_kinds(self._client, _FOREIGN)).values()
        places = [(resource, namespace) for resource in served for namespace in sorted(namespaces)]
        return tuple(chain.from_iterable(await gather_bounded(places, read, self._settings.concurrency)))

    async def last_write(self) -> datetime | None:
        """Return when this runtime's inventory was last written, by the API server's clock: after any removal."""
        try:
            found = await self._client.get(_CONFIG_MAPS, self._owner.name, self._owner.namespace)
        except ApiError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None
        return last_change(found)

    async def referenced_secrets(self) -> set[ObjectRef]:
        """Return the Secrets to which any resource in the namespaces refers, also those of other owners."""
        found: set[ObjectRef] = set()
        for resource in (await find_kinds(self._client, {(GROUP, "", kind) for kind in _READERS})).values():
            for namespace in self._namespaces:
                async for live in self._client.list(resource, namespace):
                    found |= {ObjectRef("", "Secret", namespace, name) for name in referenced_secrets(live)}
        return found

    async def existing(
        self, refs: Iterable[ResourceRef], manifests: Mapping[ResourceRef, Manifest] | None = None
    ) -> dict[ResourceRef, Object]:
        """Return at least the metadata of those of the resources that exist.

        With ``manifests``, return whole objects in the API versions of these.
        """
        wanted: dict[tuple[str, str, str], set[ResourceRef]] = {}
        for ref in refs:
            if ref.namespace in self._namespaces:
                version = _version_of(manifests[ref]) if manifests else ""
                wanted.setdefault((version, ref.kind, ref.namespace), set()).add(ref)
        served = await find_kinds(self._client, {(GROUP, version, kind) for version, kind, _ in wanted})
        found: dict[ResourceRef, Object] = {}
        for (version, kind, _), each in sorted(wanted.items()):
            if resource := served.get((GROUP, version, kind)):
                found |= await self._existing_of(resource, each, full=manifests is not None)
        return {ref: live for ref, live in found.items() if not is_terminating(live)}

    async def _existing_of(
        self, resource: ApiResource, refs: Collection[ResourceRef], *, full: bool
    ) -> dict[ResourceRef, Object]:
        """Return the resources of one kind and namespace that exist: few are read one by one, which is faster."""
        if len(refs) <= self._settings.single_reads:
            read = await gather_bounded(
                map(object_ref, refs), partial(get, self._client, resource), self._settings.concurrency
            )
            return {ref: live for ref, live in zip(refs, read, strict=True) if live is not None}
        (namespace,) = {ref.namespace for ref in refs}
        listed = self._client.list(resource, namespace, metadata_only=not full)
        found = {resource_ref(ref_of(each)): each async for each in listed}
        return {ref: found[ref] for ref in refs if ref in found}

    def added(self, manifests: Manifests, live: Mapping[ResourceRef, Object]) -> dict[ResourceRef, dict[str, str]]:
        """Return the fields that other clients added to the resources of a delivery, with their managers."""
        objects = manifests.objects
        found = {ref: additions(each, objects[ref], self._settings.manager) for ref, each in live.items()}
        return {ref: fields for ref, fields in found.items() if fields}

    def unconfirmed(self, manifests: Manifests) -> set[ResourceRef]:
        """Return the resources of a delivery whose objects were never seen with the delivered content."""
        known = {ref: confirmed for ref, (confirmed, _) in self._confirmed.items()}
        return {ref for ref, applied in manifests.objects.items() if known.get(ref) != digest(applied)}

    async def altered(
        self, manifests: Manifests, live: Mapping[ResourceRef, Object]
    ) -> dict[ResourceRef, tuple[str, ...]]:
        """Return the fields that the API server stored otherwise than they were applied; content is read if needed.

        ``live`` has at least the metadata of resources of the delivery.
        """
        objects = {ref: manifests.objects[ref] for ref in live}
        expected = {ref: (digest(objects[ref]), live_version(each).version) for ref, each in live.items()}
        due = {ref: live[ref] for ref, each in expected.items() if self._confirmed.get(ref) != each}
        whole = {ref: each for ref, each in due.items() if _is_whole(each, objects[ref])}
        found: dict[ResourceRef, tuple[str, ...]] = {}
        for ref, each in (whole | await self.existing(due.keys() - whole.keys(), objects)).items():
            applied = _loaded(objects[ref])
            fields = tuple(render(named_path(applied, path)) for path in alterations(each, applied))
            if fields:
                found[ref] = fields
            else:
                self._confirmed[ref] = expected[ref][0], live_version(each).version
        self.suspects = self.suspects.difference(map(object_ref, live)).union(map(object_ref, found))
        return found

    async def _own_objects(self, manifests: Manifests, entries: Entries) -> list[Object]:
        """Return the runtime's resources of the kinds of a delivery, in their versions, and of the inventory."""
        wanted = _kinds_of(manifests.resources.values())
        listed = {kind for _, _, kind in wanted}
        wanted |= {(GROUP, "", ref.kind) for ref in entries if ref.group == GROUP and ref.kind not in listed}
        served = await find_kinds(self._client, wanted)
        places = [(resource, namespace) for resource in served.values() for namespace in self._namespaces]
        known = {*map(object_ref, manifests.refs), *entries}
        read = await gather_bounded(places, partial(self._own_in, known), self._settings.concurrency)
        return [live for each in read for live in each]

    async def _own_in(self, known: Collection[ObjectRef], place: tuple[ApiResource, str]) -> list[Object]:
        """Return the runtime's resources of one kind and namespace: few known ones are read one by one."""
        resource, namespace = place
        refs = [ref for ref in known if (ref.group, ref.kind, ref.namespace) == (GROUP, resource.kind, namespace)]
        if not 0 < len(refs) <= self._settings.single_reads:
            return [each async for each in self._client.list(resource, namespace, labels=self.labels)]
        read = await gather_bounded(refs, partial(get, self._client, resource), self._settings.concurrency)
        return [each for each in read if each is not None and owner_of(each, self._settings) == self._owner.id]

    def _is_as_applied(self, live: Object, applied: Manifest, entries: Entries) -> bool:
        """Return whether an object was applied from this manifest and its content has not been changed since."""
        if not _was_applied(applied, live, entries):
            return False
        if entries[ref_of(live)].seen.version == live["metadata"]["resourceVersion"]:
            return True
        return contains(live, _loaded(applied)) and not additions(live, applied, self._settings.manager)

    def _content(self, live: Object) -> Manifest:
        """Return an object without what the server and the apply set add to it."""
        metadata = {
            key: live["metadata"][key] for key in ("name", "namespace", "annotations") if key in live["metadata"]
        }
        labels = {**live["metadata"].get("labels", {})}
        labels.pop(self._settings.owner_label, None)
        return {**_loaded(live), "metadata": {**metadata, "labels": labels} if labels else metadata}


def object_ref(ref: ResourceRef) -> ObjectRef:
    """Return the reference to the object of a Dapr resource."""
    return ObjectRef(GROUP, ref.kind, ref.namespace, ref.name)


def resource_ref(ref: ObjectRef) -> ResourceRef:
    """Return the reference to the Dapr resource of an object."""
    return ResourceRef(ref.kind, ref.namespace, ref.name)


def _kinds_of(manifests: Iterable[Manifest]) -> set[tuple[str, str, str]]:
    return {(GROUP, _version_of(each), each["kind"]) for each in manifests}


def _version_of(manifest: Manifest) -> str:
    return str(manifest["apiVersion"]).rpartition("/")[2]


def _loaded(manifest: Manifest) -> Manifest:
    """Return the fields of a manifest that sidecars load."""
    return {key: manifest[key] for key in _FIELDS if key in manifest}


def _is_whole(live: Object, applied: Manifest) -> bool:
    """Return whether an object has content, in the version in which it was applied."""
    return live["apiVersion"] == applied["apiVersion"] and len(_loaded(live)) > len(("apiVersion", "kind"))


def _was_applied(applied: Manifest, live: Object, entries: Entries) -> bool:
    """Return whether an object was last applied from this manifest."""
    entry = entries.get(ref_of(live))
    return entry is not None and entry.digest == digest(applied)


def live_version(live: Object) -> LiveVersion:
    """Return the version of an object: its generation rises with each change of its content, also back to another."""
    uid = live["metadata"]["uid"]
    return LiveVersion(last_change(live), f"{uid}/{live['metadata']['generation']}", uid)
