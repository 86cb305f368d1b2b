"""Statements on bundles, which are stored once by digest, and on drafts of deliveries."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import refs
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.windows import Hold, Window
from governor.server.store.schema import bundles, drafts
from governor.server.store.sqlite import batches
from governor.values.trees import Manifest

_MAX_CONTENTS: Final = 4096


class Content(msgspec.Struct, frozen=True):
    """The resources of a bundle, sealed, and their references."""

    resources: tuple[Manifest, ...]
    refs: frozenset[ResourceRef]
    ordered_refs: tuple[ResourceRef, ...]

    @classmethod
    def of(cls, resources: Iterable[Manifest]) -> "Content":
        """Return the content that consists of these resources."""
        given = tuple(resources)
        found = frozenset(refs(given))
        return cls(given, found, tuple(sorted(found)))


class Draft(msgspec.Struct, frozen=True):
    """What one accepted change delivers to a class of runtimes: ``members``, each with the version of its document.

    The first ``issued`` of them have their delivery. ``profiles`` are the versions that the bundle was compiled from.
    """

    revision: int
    digest: str
    apply: ApplyPolicy
    profiles: dict[str, int]
    windows: tuple[Window, ...]
    hold: Hold | None
    time: datetime
    members: tuple[tuple[str, int], ...]
    issued: int = 0
    id: int = 0

    @property
    def pending(self) -> tuple[tuple[str, int], ...]:
        """Return the members that have no delivery yet."""
        return self.members[self.issued :]


class Contents:
    """Bundles by digest; the last used ones stay in memory. Used from several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Content] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, connection: sa.Connection, digests: Iterable[str]) -> dict[str, Content]:
        """Return the bundles of these digests, each of which is stored."""
        wanted = frozenset(digests)
        with self._lock:
            found = {digest: self._known[digest] for digest in wanted if digest in self._known}
        missing = wanted - found.keys()
        for some in batches(missing):
            rows = connection.execute(sa.select(bundles).where(bundles.c.digest.in_(some)))
            found |= {row.digest: Content.of(row.resources) for row in rows}
        self.remember({digest: found[digest] for digest in wanted})
        return found

    def remember(self, known: Mapping[str, Content]) -> None:
        """Keep some bundles in memory."""
        with self._lock:
            for digest, content in known.items():
                self._known[digest] = content
                self._known.move_to_end(digest)
            while len(self._known) > _MAX_CONTENTS:
                self._known.popitem(last=False)


def insert_bundles(connection: sa.Connection, new: Mapping[str, tuple[Manifest, ...]]) -> None:
    """Store the bundles that are not stored yet."""
    for some in batches(new):
        statement = sa.select(bundles.c.digest).where(bundles.c.digest.in_(some))
        known = frozenset(connection.scalars(statement))
        rows = [{"digest": each, "resources": new[each]} for each in some if each not in known]
        if rows:
            connection.execute(bundles.insert(), rows)


def insert_drafts(connection: sa.Connection, new: Iterable[Draft]) -> None:
    """Store new drafts, in the order in which they are issued."""
    rows = [{name: value for name, value in msgspec.structs.asdict(each).items() if name != "id"} for each in new]
    if rows:
        connection.execute(drafts.insert(), rows)


def drafts_of(connection: sa.Connection, revision: int) -> list[Draft]:
    """Return the drafts of a revision."""
    statement = sa.select(*_DRAFT).where(drafts.c.revision == revision).order_by(drafts.c.id)
    return [_draft(row) for row in connection.execute(statement)]


def all_drafts(connection: sa.Connection) -> Iterator[Draft]:
    """Yield all drafts, in the order in which they are issued."""
    with connection.execute(sa.select(*_DRAFT).order_by(drafts.c.id)) as rows:
        yield from map(_draft, rows)


def pending_members(connection: sa.Connection) -> int:
    """Return the number of deliveries that are not issued yet."""
    return sum(len(each.pending) for each in all_drafts(connection))


def advance_drafts(connection: sa.Connection, issued: Mapping[int, int], complete: Iterable[int]) -> None:
    """Record how many members of some drafts have their delivery; delete those that are complete."""
    for draft, count in issued.items():
        connection.execute(drafts.update().where(drafts.c.id == draft).values(issued=count))
    for some in batches(complete):
        connection.execute(drafts.delete().where(drafts.c.id.in_(some)))


_DRAFT: Final = tuple(drafts.c[name] for name in Draft.__struct_fields__)


def _draft(row: sa.Row[tuple[object, ...]]) -> Draft:
    return Draft(**row._mapping)  # noqa: SLF001 - public in SQLAlchemy
