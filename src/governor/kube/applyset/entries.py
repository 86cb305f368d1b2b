"""Inventory entries: their encoding in chunks that fit a ConfigMap, and how apply and prune change them. Pure.

Format v1: a chunk is a JSON list of ``[group, kind, namespace, [[name, uid, digest], ...]]``. An entry without a uid is
an intent: the object may or may not have been written. ``inventory`` stores the chunks.
"""

import base64
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.manifests import Desired
from governor.kube.applyset.results import SETTLED, SUCCEEDED, ObjectResult, Outcome, PruneOutcome, PruneResult
from governor.kube.applyset.settings import is_name, is_namespace
from governor.kube.objects import Object, ObjectRef

MAX_CHUNK_BYTES: Final = 512 * 1024
"""Half of what a ConfigMap may hold, which leaves room for metadata."""

_ALGORITHM: Final = "sha256:"
_BLOCK_BYTES: Final = len("[[]],[]")


class Entry(msgspec.Struct, frozen=True, order=True):
    """One object of the set."""

    ref: ObjectRef
    uid: str = ""
    """Uid of the object when it was last read; empty while unknown."""
    digest: str = ""
    """Digest of the manifest applied last; empty while uncertain."""


Entries: TypeAlias = Mapping[ObjectRef, Entry]
LiveObjects: TypeAlias = Mapping[ObjectRef, Object | GovernorError | None]
"""Live objects of inventory entries, or the error of reading them."""

_Row: TypeAlias = tuple[str, str, str]
_Block: TypeAlias = tuple[str, str, str, list[_Row]]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[_Block]).decode


def by_ref(entries: Iterable[Entry]) -> dict[ObjectRef, Entry]:
    """Return the entries indexed by object reference."""
    return {entry.ref: entry for entry in entries}


def pack(entries: Entries, chunk_bytes: int = MAX_CHUNK_BYTES) -> tuple[str, ...]:
    """Encode entries into one or more chunks of at most ``chunk_bytes``; equal entries give equal chunks."""
    chunks: list[list[Entry]] = [[]]
    room = chunk_bytes
    for entry in sorted(entries.values()):
        # Each entry is counted as if it had its own block, so a chunk is never larger than counted.
        size = len(_encode((*_block_key(entry), *_row(entry)))) + _BLOCK_BYTES
        if size > room:
            chunks.append([])
            room = chunk_bytes
        chunks[-1].append(entry)
        room -= size
    return tuple(_encode(_blocks(chunk)).decode() for chunk in chunks if chunk or len(chunks) == 1)


def unpack(chunks: Iterable[str]) -> dict[ObjectRef, Entry]:
    """Decode chunks written by ``pack``; PRECONDITION for anything else."""
    found: dict[ObjectRef, Entry] = {}
    for chunk in chunks:
        try:
            blocks = _decode(chunk)
        except msgspec.MsgspecError as error:
            raise _undecodable(str(error)) from error
        for group, kind, namespace, rows in blocks:
            for name, uid, digest in rows:
                ref = ObjectRef(group, kind, namespace, name)
                _check(ref, duplicate=ref in found)
                found[ref] = Entry(ref, uid, _long_digest(digest))
    return found


def is_applied(desired: Desired, entries: Entries) -> bool:
    """Return whether the manifest equals the one applied last."""
    known = entries.get(desired.ref)
    return bool(known and known.uid and desired.digest and known.digest == desired.digest)


def before_apply(entries: Entries, due: Iterable[Desired], live: LiveObjects) -> Entries:
    """Return the entries to store before the due objects are applied.

    An object to be created has no uid: with the old one, the new object would count as foreign. An object to be changed
    has no digest: after a crash it may be in either state.
    """
    return {**entries, **{desired.ref: _intent(entries.get(desired.ref), desired, live) for desired in due}}


def after_apply(entries: Entries, due: Iterable[Desired], results: Mapping[ObjectRef, ObjectResult]) -> Entries:
    """Return the entries to store after the due objects were applied."""
    return {
        **entries,
        **{desired.ref: _applied(entries[desired.ref], desired, results[desired.ref]) for desired in due},
    }


def before_prune(entries: Entries, desired: Collection[ObjectRef]) -> Entries:
    """Return the entries without the digests of the objects to be pruned.

    Otherwise, after a crash, an object that is desired again would count as already applied.
    """
    return {ref: entry if ref in desired else Entry(ref, entry.uid) for ref, entry in entries.items()}


def after_prune(entries: Entries, results: Iterable[PruneResult]) -> Entries:
    """Return the entries without the objects whose pruning is settled."""
    settled = {result.ref for result in results if result.outcome in SETTLED}
    return {ref: entry for ref, entry in entries.items() if ref not in settled}


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
    return Entry(desired.ref, uid, known.digest if known.digest == desired.digest else "")


def _applied(intent: Entry, desired: Desired, result: ObjectResult) -> Entry:
    if result.outcome in SUCCEEDED:
        return Entry(desired.ref, result.uid, desired.digest)
    return intent if result.outcome is Outcome.SKIPPED else Entry(desired.ref, intent.uid)


def _blocks(entries: Iterable[Entry]) -> list[_Block]:
    return [(*key, [_row(entry) for entry in group]) for key, group in groupby(entries, key=_block_key)]


def _block_key(entry: Entry) -> tuple[str, str, str]:
    return entry.ref.group, entry.ref.kind, entry.ref.namespace


def _row(entry: Entry) -> _Row:
    return entry.ref.name, entry.uid, _short_digest(entry.digest)


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
