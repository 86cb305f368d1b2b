"""Inventory entries: their encoding, and how apply, checks and prune change them. Pure.

The entries are a JSON list of ``[group, kind, namespace, rows]`` with rows ``[name, uid, digest, resourceVersion,
generation, metadata digest, digest of the ignored fields]``; format v1 has no fields after the digest. An entry without
a uid is an intent: the object may or may not have been written. ``inventory`` stores the text.
"""

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.kube.applyset.manifests import Desired
from governor.kube.applyset.results import SETTLED, SUCCEEDED, ObjectResult, Outcome, PruneOutcome, PruneResult, Seen
from governor.kube.applyset.settings import is_name, is_namespace
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.values.digest import canonical
from governor.values.paths import Path, render

MAX_BYTES: Final = 1_000_000
"""Limit of the encoded entries. A ConfigMap may hold 1,048,576 bytes; the rest is for the other fields of the head."""

_ALGORITHM: Final = "sha256:"
_ROW_BYTES: Final = 140
"""What uid, digest and state of an object take: reserved for entries that do not have them yet."""
_METADATA: Final = ("annotations", "finalizers", "labels", "ownerReferences")
_SHORT_HASH_BYTES: Final = 12
_NOT_CREATED: Final = frozenset({Outcome.REFUSED, Outcome.SKIPPED})


class Entry(msgspec.Struct, frozen=True, order=True):
    """One object of the set."""

    ref: ObjectRef
    uid: str = ""
    """Uid of the object when it was last read; empty while unknown."""
    digest: str = ""
    """Digest of the manifest applied last, keyed for a Secret; empty while uncertain."""
    seen: Seen = Seen()
    """State in which the object was as desired."""


Entries: TypeAlias = Mapping[ObjectRef, Entry]
LiveObjects: TypeAlias = Mapping[ObjectRef, Object | GovernorError | None]
"""Live objects of inventory entries, or the error of reading them."""


class _Row(msgspec.Struct, frozen=True, array_like=True):
    name: str
    uid: str
    digest: str
    version: str = ""
    generation: int = 0
    metadata: str = ""
    ignored: str = ""


_Block: TypeAlias = tuple[str, str, str, list[_Row]]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[_Block]).decode


def by_ref(entries: Iterable[Entry]) -> dict[ObjectRef, Entry]:
    """Return the entries indexed by object reference."""
    return {entry.ref: entry for entry in entries}


def pack(entries: Entries) -> str:
    """Encode entries; equal entries give equal texts. INVALID if they do not fit into one ConfigMap."""
    ordered = sorted(entries.values())
    blocks = [(*key, [_row(entry) for entry in group]) for key, group in groupby(ordered, key=_block_key)]
    text = _encode(blocks)
    size = len(text) + _ROW_BYTES * sum(not entry.digest for entry in ordered)
    if size > MAX_BYTES:
        message = (
            f"the inventory of {len(ordered)} objects takes {size} bytes, and a ConfigMap holds {MAX_BYTES}; "
            "divide the objects among several sets"
        )
        raise invalid("set-too-large", message)
    return text.decode()


def unpack(texts: Iterable[str]) -> dict[ObjectRef, Entry]:
    """Decode texts written by ``pack`` or by format v1; PRECONDITION for anything else."""
    found: dict[ObjectRef, Entry] = {}
    for text in texts:
        try:
            blocks = _decode(text)
        except msgspec.MsgspecError as error:
            raise _undecodable(str(error)) from error
        for group, kind, namespace, rows in blocks:
            for row in rows:
                ref = ObjectRef(group, kind, namespace, row.name)
                _check(ref, duplicate=ref in found)
                seen = Seen(row.version, row.generation, row.metadata, row.ignored)
                found[ref] = Entry(ref, row.uid, _long_digest(row.digest), seen)
    return found


def seen_in(live: Object, resource: ApiResource, ignored: Iterable[Path] = ()) -> Seen:
    """Return the state of a live object; reading its metadata is enough to compare it later."""
    metadata = live["metadata"]
    # Without a status nothing but the content changes the resourceVersion, and some kinds do not count that: the
    # generation of a PriorityClass is always 1.
    generation = metadata.get("generation") or 0 if "status" in resource.subresources else 0
    # Annotations of a Secret may contain its values, and a Secret has no generation.
    content = _metadata_digest(metadata) if generation else ""
    rules = sorted(map(render, ignored))
    return Seen(metadata["resourceVersion"], generation, content, _short_hash(rules) if rules else "")


def is_unchanged(seen: Seen, now: Seen) -> bool:
    """Return whether nothing but the status of an object changed since it was seen as desired."""
    if not seen.version or now.ignored != seen.ignored:
        return False
    same_content = bool(now.generation) and (now.generation, now.metadata) == (seen.generation, seen.metadata)
    return now.version == seen.version or same_content


def is_applied(desired: Desired, entries: Entries) -> bool:
    """Return whether the manifest equals the one applied last."""
    known = entries.get(desired.ref)
    return bool(known and known.uid and desired.digest and known.digest == desired.digest)


def before_apply(entries: Entries, due: Iterable[Desired], live: LiveObjects) -> Entries:
    """Return the entries to store before the due objects are applied.

    An object to be created has no uid: with the old one, the new object would count as foreign. An object to be changed
    has no digest: after a crash it may be in either state. One that replaced a deleted object has none either.
    """
    return {**entries, **{desired.ref: _intent(entries.get(desired.ref), desired, live) for desired in due}}


def after_apply(
    entries: Entries, due: Iterable[Desired], results: Mapping[ObjectRef, ObjectResult], listed: Collection[ObjectRef]
) -> Entries:
    """Return the entries to store after the due objects were applied; ``listed`` were in the inventory before.

    A new object that was refused or not sent does not exist. Its entry would have to be pruned, and a user who may not
    create an object may usually not delete it either.
    """
    applied = {desired.ref: _applied(entries[desired.ref], desired, results[desired.ref]) for desired in due}
    absent = {ref for ref in applied.keys() - set(listed) if results[ref].outcome in _NOT_CREATED}
    return {ref: entry for ref, entry in {**entries, **applied}.items() if ref not in absent}


def before_prune(entries: Entries, desired: Collection[ObjectRef]) -> Entries:
    """Return the entries without the digests of the objects to be pruned.

    Otherwise, after a crash, an object that is desired again would count as already applied.
    """
    return {ref: entry if ref in desired else Entry(ref, entry.uid) for ref, entry in entries.items()}


def after_check(entries: Entries, seen: Mapping[ObjectRef, Seen]) -> Entries:
    """Return the entries with the states in which objects were found as desired."""
    updated = {ref: msgspec.structs.replace(entries[ref], seen=state) for ref, state in seen.items()}
    return {**entries, **updated}


def after_prune(entries: Entries, results: Collection[PruneResult]) -> Entries:
    """Return the entries without the objects whose pruning is settled.

    Deleted objects stay until their namespace was tried too: by their uids the next run recognises their dependents.
    """
    settled = {result.ref for result in results if result.outcome in SETTLED}
    deleted = {result.ref for result in results if result.outcome in {PruneOutcome.REMOVED, PruneOutcome.ABSENT}}
    untried = {result.ref for result in results if result.outcome is PruneOutcome.SKIPPED}
    retained = {ref for ref in deleted if ObjectRef("", "Namespace", "", ref.namespace) in untried}
    return {ref: entry for ref, entry in entries.items() if ref not in settled - retained}


def skip_prune(entries: Entries, desired: Collection[ObjectRef], failed: ObjectRef) -> tuple[PruneResult, ...]:
    """Return SKIPPED for all entries that are no longer desired, because an object could not be applied."""
    reason = f"{failed} must be applied first"
    return tuple(PruneResult(ref, PruneOutcome.SKIPPED, reason) for ref in sorted(entries) if ref not in desired)


def kept_aliases(entries: Entries, desired: Collection[ObjectRef]) -> tuple[PruneResult, ...]:
    """Return KEPT for entries that are the same object as a desired one: two API groups may serve one object."""
    by_uid = {entries[ref].uid: ref for ref in desired if ref in entries and entries[ref].uid}
    return tuple(
        PruneResult(ref, PruneOutcome.KEPT, f"is the same object as {by_uid[entry.uid]}")
        for ref, entry in sorted(entries.items())
        if ref not in desired and entry.uid in by_uid
    )


def _intent(known: Entry | None, desired: Desired, objects: LiveObjects) -> Entry:
    if known is None or not known.uid:
        return Entry(desired.ref)
    live = objects[desired.ref]
    uid = known.uid if isinstance(live, GovernorError) else live["metadata"]["uid"] if live else ""
    same = uid == known.uid and known.digest == desired.digest
    return Entry(desired.ref, uid, known.digest, known.seen) if same else Entry(desired.ref, uid)


def _applied(intent: Entry, desired: Desired, result: ObjectResult) -> Entry:
    if result.outcome in SUCCEEDED:
        return Entry(desired.ref, result.uid, desired.digest, result.seen)
    return intent if result.outcome is Outcome.SKIPPED else Entry(desired.ref, intent.uid)


def _block_key(entry: Entry) -> tuple[str, str, str]:
    return entry.ref.group, entry.ref.kind, entry.ref.namespace


def _row(entry: Entry) -> _Row:
    return _Row(entry.ref.name, entry.uid, _short_digest(entry.digest), *msgspec.structs.astuple(entry.seen))


def _metadata_digest(metadata: Object) -> str:
    return _short_hash({key: metadata.get(key) or None for key in _METADATA})


def _short_hash(content: Any) -> str:
    raw = hashlib.sha256(canonical(content)).digest()[:_SHORT_HASH_BYTES]
    return base64.urlsafe_b64encode(raw).decode()


def _check(ref: ObjectRef, *, duplicate: bool) -> None:
    if duplicate:
        raise _undecodable(f"{ref} is listed twice")
    # The names become segments of request paths.
    if not (ref.kind and is_name(ref.name) and (not ref.namespace or is_namespace(ref.namespace))):
        raise _undecodable(f"{ref} is not a valid object name")


def _short_digest(digest: str) -> str:
    raw = bytes.fromhex(digest.removeprefix(_ALGORITHM))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _long_digest(text: str) -> str:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise _undecodable(f"{text!r} is not a digest") from error
    return _ALGORITHM + raw.hex() if raw else ""


def _undecodable(why: str) -> GovernorError:
    return GovernorError(Kind.PRECONDITION, "inventory-damaged", f"its entries cannot be decoded: {why}")
