"""What the inventory says before objects are written and after: pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from governor.errors import GovernorError
from governor.kube.applyset.entries import Entries, Entry
from governor.kube.applyset.manifests import Wanted
from governor.kube.applyset.results import FORGOTTEN, GOOD, ObjectResult, Outcome, Removal, RemovalResult
from governor.kube.objects import Object, ObjectRef

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
