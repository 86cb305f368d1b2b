"""What an inventory says, and its text: entries packed into pieces that each fit into one ConfigMap.

Format v1: a piece is a JSON list of ``[group, kind, namespace, [[name, uid, digest], ...]]``. An entry without a uid is
an intent: the object may or may not have been written. Where the pieces are kept is the business of ``inventory``.
"""

import base64
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.manifests import Wanted
from governor.kube.applyset.results import FORGOTTEN, GOOD, ObjectResult, Outcome, Removal, RemovalResult
from governor.kube.applyset.settings import is_name, is_namespace
from governor.kube.objects import Object, ObjectRef

PIECE_BYTES: Final = 512 * 1024
"""A ConfigMap may hold 1 MiB; half of it leaves room for whatever else a server counts."""

_ALGORITHM: Final = "sha256:"
_BLOCK_BYTES: Final = len("[[]],[]")


class Entry(msgspec.Struct, frozen=True, order=True):
    """One object of the set."""

    ref: ObjectRef
    uid: str = ""
    """Of the object as it was last seen; empty while it is not known."""
    digest: str = ""
    """Of the manifest that it was last applied with; empty while that is not sure."""


Entries: TypeAlias = Mapping[ObjectRef, Entry]

_Row: TypeAlias = tuple[str, str, str]
_Block: TypeAlias = tuple[str, str, str, list[_Row]]

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[_Block]).decode


def entries_of(entries: Iterable[Entry]) -> dict[ObjectRef, Entry]:
    """Entries by what they are about."""
    return {entry.ref: entry for entry in entries}


def pack(entries: Entries, piece_bytes: int = PIECE_BYTES) -> tuple[str, ...]:
    """The entries as texts of at most so many bytes, at least one; equal entries give equal texts."""
    pieces: list[list[Entry]] = [[]]
    room = piece_bytes
    for entry in sorted(entries.values()):
        # Each counts as if it had a block of its own, so a piece can only be smaller than counted.
        size = len(_encode((*_place(entry), *_row(entry)))) + _BLOCK_BYTES
        if size > room:
            pieces.append([])
            room = piece_bytes
        pieces[-1].append(entry)
        room -= size
    return tuple(_encode(_blocks(piece)).decode() for piece in pieces if piece or len(pieces) == 1)


def unpack(pieces: Iterable[str]) -> dict[ObjectRef, Entry]:
    """The entries in texts; PRECONDITION if these are not what ``pack`` writes."""
    found: dict[ObjectRef, Entry] = {}
    for piece in pieces:
        try:
            blocks = _decode(piece)
        except msgspec.MsgspecError as error:
            raise _unreadable(str(error)) from error
        for group, kind, namespace, rows in blocks:
            for name, uid, digest in rows:
                ref = ObjectRef(group, kind, namespace, name)
                _check(ref, known=ref in found)
                found[ref] = Entry(ref, uid, _long(digest))
    return found


def _blocks(entries: Iterable[Entry]) -> list[_Block]:
    return [(*place, [_row(entry) for entry in group]) for place, group in groupby(entries, key=_place)]


def _place(entry: Entry) -> tuple[str, str, str]:
    return entry.ref.group, entry.ref.kind, entry.ref.namespace


def _row(entry: Entry) -> _Row:
    return entry.ref.name, entry.uid, _short(entry.digest)


def _check(ref: ObjectRef, *, known: bool) -> None:
    if known:
        raise _unreadable(f"{ref} is listed twice")
    # The names become parts of request paths.
    if not (ref.kind and is_name(ref.name) and (not ref.namespace or is_namespace(ref.namespace))):
        raise _unreadable(f"{ref} cannot be the name of an object")


def _short(digest: str) -> str:
    raw = bytes.fromhex(digest.removeprefix(_ALGORITHM))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _long(text: str) -> str:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise _unreadable(f"{text!r} is no digest") from error
    return _ALGORITHM + raw.hex() if raw else ""


def _unreadable(why: str) -> GovernorError:
    return GovernorError(Kind.PRECONDITION, "inventory-damaged", f"the entries cannot be read: {why}")


Seen: TypeAlias = Mapping[ObjectRef, Object | GovernorError | None]
"""What was found where objects of the inventory were looked for."""


def is_applied(wanted: Wanted, entries: Entries) -> bool:
    """Whether this very manifest is the one that was applied last."""
    known = entries.get(wanted.ref)
    return bool(known and known.uid and wanted.digest and known.digest == wanted.digest)


def intended(entries: Entries, due: Iterable[Wanted], seen: Seen) -> Entries:
    """Everything that is there, and everything that may be there in a moment.

    An object about to be made has no uid yet: the old one would make the new object look like somebody else's. One
    about to be changed has no digest: after a crash it may be either way.
    """
    return {**entries, **{wanted.ref: _intent(entries.get(wanted.ref), wanted, seen) for wanted in due}}


def recorded(entries: Entries, due: Iterable[Wanted], results: Mapping[ObjectRef, ObjectResult]) -> Entries:
    """Everything that is there, as it was written."""
    return {**entries, **{wanted.ref: _record(entries[wanted.ref], wanted, results[wanted.ref]) for wanted in due}}


def doomed(entries: Entries, wanted: Collection[ObjectRef]) -> Entries:
    """Everything that is there, without the digests of what is about to be removed.

    Otherwise, after a crash, an object that is wanted again would be taken for one that is still as it was applied.
    """
    return {ref: entry if ref in wanted else Entry(ref, entry.uid) for ref, entry in entries.items()}


def forgotten(entries: Entries, results: Iterable[RemovalResult]) -> Entries:
    """What is left to be removed."""
    gone = {result.ref for result in results if result.outcome in FORGOTTEN}
    return {ref: entry for ref, entry in entries.items() if ref not in gone}


def same_objects(entries: Entries, wanted: Collection[ObjectRef]) -> tuple[RemovalResult, ...]:
    """What is not wanted by this name, but is by another: two groups may serve one object."""
    names = {entries[ref].uid: ref for ref in wanted if ref in entries and entries[ref].uid}
    return tuple(
        RemovalResult(ref, Removal.KEPT, f"is the same object as {names[entry.uid]}")
        for ref, entry in sorted(entries.items())
        if ref not in wanted and entry.uid in names
    )


def _intent(known: Entry | None, wanted: Wanted, seen: Seen) -> Entry:
    if known is None or not known.uid:
        return Entry(wanted.ref)
    live = seen[wanted.ref]
    uid = known.uid if isinstance(live, GovernorError) else live["metadata"]["uid"] if live else ""
    return Entry(wanted.ref, uid, known.digest if known.digest == wanted.digest else "")


def _record(intent: Entry, wanted: Wanted, result: ObjectResult) -> Entry:
    if result.outcome in GOOD:
        return Entry(wanted.ref, result.uid, wanted.digest)
    return intent if result.outcome is Outcome.SKIPPED else Entry(wanted.ref, intent.uid)
