"""Live objects: reading them, whether they terminate, who owns them, and whether a new kind is served.

A missing object is distinguished from a kind that is not served. Only the set named by the owner label may prune an
object. An object that existed before does not get the label and is shared, unless one of its field managers is adopted
or its owner is inherited. Fields written through a subresource such as ``status`` are never adopted.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.diff import text_matches
from governor.kube.applyset.manifests import Desired, GroupVersionKind, key_of, kinds_of_crd
from governor.kube.applyset.order import Stage, stage_of
from governor.kube.applyset.settings import Owner, Recreate, Settings
from governor.kube.client import Client, Request
from governor.kube.errors import NO_API, ApiError
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.process.clock import Clock
from governor.values.paths import Item, Path, Step

NOT_SERVED: Final = "kube-not-served"
APPLY: Final = "Apply"

_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0

_Fields: TypeAlias = dict[str, Any]


async def get(client: Client, resource: ApiResource, ref: ObjectRef) -> Object | None:
    """Return the live object, or None if the API server reports NotFound.

    A 404 without that reason comes from a proxy or an unknown path and proves nothing: UNAVAILABLE.
    """
    try:
        return await client.get(resource, ref.name, ref.namespace)
    except ApiError as error:
        if error.kind is not Kind.NOT_FOUND and error.code != NO_API:
            raise
        if error.reason == "NotFound":
            return None
        client.discovery.invalidate()  # the kind may be gone
        message = (
            f"{error.message}: cannot tell whether {ref} exists; "
            "check that the address is an API server's and that the kind is served"
        )
        raise GovernorError(Kind.UNAVAILABLE, NOT_SERVED, message) from error


async def try_get(client: Client, desired: Desired) -> Object | GovernorError | None:
    """Return the live object, None if it does not exist, or the error of the request.

    An object whose kind is not served because its definition is yet to be applied does not exist.
    """
    try:
        return await get(client, desired.resource, desired.ref)
    except GovernorError as error:
        return None if desired.defined_in_set and error.code == NOT_SERVED else error


async def find_kinds(client: Client, kinds: Collection[GroupVersionKind]) -> dict[GroupVersionKind, ApiResource]:
    """Return those of the kinds that the server serves; UNAVAILABLE if it may not know all of them yet."""
    served: dict[GroupVersionKind, ApiResource] = {}
    missing = set(kinds)
    for retry in (False, True):
        if missing and retry:
            await client.discovery.require_ready()  # the kind may have been defined a moment ago
        for key in sorted(missing):
            group, version, kind = key
            try:
                served[key] = await client.discovery.find(group, kind, version)
            except GovernorError as error:
                if error.kind is not Kind.NOT_FOUND:
                    raise
        missing -= served.keys()
    return served


async def without_prerequisites(client: Client, due: Iterable[Desired]) -> set[ObjectRef]:
    """Return the objects that a dry run cannot apply: their namespace or kind is yet to be created by the set."""
    due = tuple(due)
    namespaces = [each for each in due if stage_of(each.ref) is Stage.NAMESPACES]
    absent = {each.ref.name for each in namespaces if await get(client, each.resource, each.ref) is None}
    defined = {key_of(each.resource) for each in due if each.defined_in_set}
    unserved = defined - (await find_kinds(client, defined)).keys()
    return {each.ref for each in due if each.ref.namespace in absent or key_of(each.resource) in unserved}


def is_terminating(live: Object) -> bool:
    """Return whether the object has a deletion timestamp."""
    return bool(live["metadata"].get("deletionTimestamp"))


def describe_termination(live: Object) -> str:
    """Return what a terminating object waits for: its finalizers and, for a namespace, its conditions."""
    finalizers = [*live["metadata"].get("finalizers", ()), *_namespace_finalizers(live)]
    conditions = (live.get("status") or {}).get("conditions") or () if live["kind"] == "Namespace" else ()
    messages = [str(each.get("message", "")) for each in conditions if each.get("status") == "True"]
    cause = f"finalizer {', '.join(finalizers)}" if finalizers else "no finalizer, possibly a grace period"
    return "; ".join([f"still terminating: {cause}", *messages])


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...]


_decode_resources: Final = msgspec.json.Decoder(_Resources).decode


async def wait_until_served(client: Client, crd: Desired, clock: Clock, timeout_s: float) -> str:
    """Wait until a CustomResourceDefinition is established and all its versions are served.

    Return the reason if that takes longer than the timeout, otherwise ``""``.
    """
    deadline = clock.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while why := await _why_not_served(client, crd):
        if clock.monotonic() >= deadline:
            return f"its kind is not served after {timeout_s:g} s: {why}"
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    client.discovery.invalidate()
    return ""


async def _why_not_served(client: Client, crd: Desired) -> str:
    try:
        live = await get(client, crd.resource, crd.ref)
        conditions = _conditions(live or {})
        if conditions.get("Established", {}).get("status") != "True":
            return str(conditions.get("NamesAccepted", {}).get("message") or "it is not established")
        for kind in kinds_of_crd(live):
            # Discovery is readable for every user; listing objects may be forbidden.
            served = _decode_resources(await client.send(Request("GET", f"/apis/{kind.group}/{kind.version}")))
            if kind.plural not in {each.name for each in served.resources}:
                return f"{kind.version} is not served yet"
    except GovernorError as error:
        # A version that is not served yet is a 404; any other failure may be temporary.
        if error.kind in {Kind.DENIED, Kind.UNAUTHENTICATED}:
            raise
        return error.message
    return ""


def _conditions(live: Mapping[str, Any]) -> Mapping[str, Any]:
    return {each["type"]: each for each in (live.get("status") or {}).get("conditions") or ()}


def owner_of(live: Object, settings: Settings) -> str:
    """Return the owning apply set's id, or ``""``."""
    return str((live["metadata"].get("labels") or {}).get(settings.owner_label, ""))


def is_inherited(live: Object, settings: Settings) -> bool:
    """Return whether the object belongs to a set that is gone and whose objects this set takes over."""
    owner = owner_of(live, settings)
    return bool(owner) and owner in settings.inherited_owners


def will_own(live: Object | None, owner: Owner, settings: Settings) -> bool:
    """Return whether the set owns the object once it is applied: already, because it is new, or by adoption."""
    if live is None or owner_of(live, settings) == owner.id or is_inherited(live, settings):
        return True
    is_own = settings.refuse_foreign and has_applied(live, settings.manager)  # and lost its label
    return (is_own and not owner_of(live, settings)) or is_adoptable(live, settings)


def digest_key(live: Object | GovernorError | None, settings: Settings) -> str:
    """Return the key of a live Secret's digest, or ``""`` if it is missing or the Secret is not known."""
    metadata = live["metadata"] if isinstance(live, dict) else {}
    return str((metadata.get("annotations") or {}).get(settings.digest_key_annotation, ""))


def keep_annotation(live: Object, keep: Mapping[str, str]) -> str:
    """Return the annotation because of which the object is not deleted, or ``""``."""
    annotations = live["metadata"].get("annotations") or {}
    return next((f"{key}: {value}" for key, value in keep.items() if annotations.get(key) == value), "")


def why_not_recreated(desired: Desired, live: Object, owner: Owner, settings: Settings) -> str:
    """Return why the object may not be deleted and created again, or ``""`` if it may."""
    own = (desired.manifest["metadata"].get("annotations") or {}).get(settings.recreate_annotation, "")
    stage = stage_of(desired.ref)
    if stage in {Stage.CRDS, Stage.NAMESPACES}:
        return "it is not re-created, because its contents would be deleted too"
    if owner_of(live, settings) != owner.id:
        return "it is not re-created, because it existed before the set"
    if kept := keep_annotation(live, settings.keep_annotations):
        return f"it is not re-created, because it has the annotation {kept}"
    # A volume loses its data: only its own annotation permits that.
    if (own or (Recreate.NEVER if stage is Stage.STORAGE else settings.recreate)) != Recreate.ON_IMMUTABLE:
        return f"delete it, or let it be re-created by the annotation {settings.recreate_annotation}: on-immutable"
    return ""


def with_owner_label(manifest: Object, owner: Owner, settings: Settings) -> Object:
    """Return the manifest with the owner label."""
    metadata = manifest["metadata"]
    labels = {**(metadata.get("labels") or {}), settings.owner_label: owner.id}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def managers_of(live: Object) -> frozenset[str]:
    """Return all field managers of the object itself."""
    return frozenset(entry["manager"] for entry in _entries(live))


def managers_to_adopt(live: Object, settings: Settings) -> frozenset[str]:
    """Return the adopted managers, and of an inherited object those of its owner label."""
    adopted = settings.adopted_managers if _is_marked(live, settings) else frozenset[str]()
    if not is_inherited(live, settings):
        return adopted
    label = f"f:{settings.owner_label}"
    return adopted | {
        entry["manager"]
        for entry in _entries(live)
        if label in entry.get("fieldsV1", {}).get("f:metadata", {}).get("f:labels", {})
    }


def is_adoptable(live: Object, settings: Settings) -> bool:
    """Return whether the object belongs to an owner whose objects the set adopts."""
    return not owner_of(live, settings) and bool(managers_of(live) & managers_to_adopt(live, settings))


def _is_marked(live: Object, settings: Settings) -> bool:
    """Return whether the object may be adopted from its managers; one with an owner label was adopted before."""
    if not settings.adopted_marks or owner_of(live, settings) or stage_of(ref_of(live)) is Stage.CRDS:
        return True
    metadata = live["metadata"]
    found = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
    return any(
        all(key in found and text_matches(pattern, found[key]) for key, pattern in marks.items())
        for marks in settings.adopted_marks
    )


def has_applied(live: Object, manager: str) -> bool:
    """Return whether the manager owns fields by apply."""
    return any(entry["manager"] == manager and entry["operation"] == APPLY for entry in _entries(live))


def applied_fields(live: Object, manager: str) -> _Fields:
    """Return the ``fieldsV1`` that the manager applied."""
    for entry in _entries(live):
        if entry["manager"] == manager and entry["operation"] == APPLY:
            fields: _Fields = entry.get("fieldsV1", {})
            return fields
    return {}


def adopt_fields(live: Object, adopted: Collection[str], manager: str) -> list[Object] | None:
    """Return ``managedFields`` with the adopted managers' fields moved to ``manager``; None if they own none."""
    entries: list[Object] = live["metadata"].get("managedFields", [])
    sources = [entry for entry in _entries(live) if entry["manager"] in adopted and entry["manager"] != manager]
    if not sources:
        return None
    own = [entry for entry in _entries(live) if entry["manager"] == manager and entry["operation"] == APPLY]
    fields: _Fields = {}
    for entry in [*own, *sources]:
        fields = _merge(fields, entry.get("fieldsV1", {}))
    first = (own or sources)[0]
    merged = {**first, "manager": manager, "operation": APPLY, "fieldsV1": fields}
    return [merged, *(entry for entry in entries if not any(entry is replaced for replaced in (*own, *sources)))]


def without_released_fields(live: Object, after: Object, adopted: Collection[str], manager: str) -> Object:
    """Return the state after an apply without the fields that it removes once the adopted fields are the manager's.

    ``after`` is the result of a dry run, which cannot move fields first. Fields of other managers stay.
    """
    sources: _Fields = {}
    others = applied_fields(after, manager)
    for entry in live["metadata"].get("managedFields", ()):
        fields = entry.get("fieldsV1", {})
        if entry["manager"] in adopted and not entry.get("subresource"):
            sources = _merge(sources, fields)
        elif entry["manager"] != manager:
            others = _merge(others, fields)
    kept: Object = _without_fields(after, _released(sources, others))
    return kept


def other_managers(live: Object, path: Path, manager: str) -> tuple[str, ...]:
    """Return the managers other than ``manager`` of the field at a path, its parents or children, latest first.

    Subresources are included: an autoscaler sets ``spec.replicas`` through one.
    """
    entries = live["metadata"].get("managedFields", ())
    found = [entry for entry in entries if entry["manager"] != manager and _covers(entry.get("fieldsV1", {}), path)]
    found.sort(key=lambda entry: str(entry.get("time", "")), reverse=True)
    return tuple(dict.fromkeys(entry["manager"] for entry in found))


def _namespace_finalizers(live: Object) -> list[str]:
    return list((live.get("spec") or {}).get("finalizers") or ()) if live["kind"] == "Namespace" else []


def _entries(live: Object) -> Iterator[Object]:
    for entry in live["metadata"].get("managedFields", ()):
        if not entry.get("subresource"):
            yield entry


def _merge(left: _Fields, right: _Fields) -> _Fields:
    both = {key: _merge(left[key], right[key]) for key in left.keys() & right.keys()}
    return {**left, **right, **both}


def _released(fields: _Fields, kept: _Fields) -> _Fields:
    """Return the fields that are not kept; one without children is removed with everything below it."""
    released: _Fields = {}
    for key, child in fields.items():
        if key == "." or kept.get(key) == {}:
            continue
        if key not in kept and (not child or "." in child):
            released[key] = {}
        elif below := _released(child, kept.get(key, {})):
            released[key] = below
    return released


def _without_fields(tree: Any, released: _Fields) -> Any:
    if isinstance(tree, dict):
        below = {key[2:]: child for key, child in released.items()}
        kept = {key: value for key, value in tree.items() if below.get(key) != {}}
        return {key: _without_fields(value, below.get(key, {})) for key, value in kept.items()}
    if isinstance(tree, list):
        found = [(each, _fields_of_item(each, index, released)) for index, each in enumerate(tree)]
        return [_without_fields(each, fields or {}) for each, fields in found if fields != {}]
    return tree


def _fields_of_item(item: Any, index: int, fields: _Fields) -> _Fields | None:
    """Return the fields below one item of a list, or None if there are none."""
    for key, child in fields.items():
        kind, _, text = key.partition(":")
        identity = json.loads(text)
        is_keyed = kind == "k" and isinstance(item, dict) and identity.items() <= item.items()
        if is_keyed or (kind == "v" and identity == item) or (kind == "i" and identity == index):
            return dict(child)
    return None


def _covers(fields: _Fields, path: Path) -> bool:
    for step in path:
        children = {key: child for key, child in fields.items() if key != "."}
        if not children:  # a leaf: its manager owns everything below it
            return True
        key = _key(children, step)
        if key is None:
            return False
        fields = children[key]
    return True


def _key(fields: _Fields, step: Step) -> str | None:
    if isinstance(step, str):
        return f"f:{step}" if f"f:{step}" in fields else None
    if isinstance(step, Item):
        return next((key for key in fields if key.startswith("k:") and _has_name(key, step.name)), None)
    return f"i:{step}" if f"i:{step}" in fields else None


def _has_name(key: str, name: str) -> bool:
    try:
        return bool(json.loads(key[2:]).get("name") == name)
    except ValueError:
        return False
