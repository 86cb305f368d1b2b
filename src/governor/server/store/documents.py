"""Statements on documents, revisions and changes."""

from collections.abc import Iterable
from datetime import datetime

import msgspec
import sqlalchemy as sa

from governor.domain.changes import Change, Revision
from governor.domain.documents import DocumentRef
from governor.server.store.schema import changes, document_versions, revisions
from governor.server.store.sqlite import batches
from governor.values.trees import Manifest


class DocumentVersion(msgspec.Struct, frozen=True):
    """One version of a document; a deletion is a version whose tree is None."""

    kind: str
    name: str
    version: int
    revision: int
    digest: str
    tree: Manifest | None

    @property
    def ref(self) -> DocumentRef:
        """Return the document's reference."""
        return DocumentRef(self.kind, self.name)


def newest_versions(
    connection: sa.Connection, kind: str | None = None, at: int | None = None
) -> dict[DocumentRef, DocumentVersion]:
    """Return the newest version of each document, now or at a revision, including deleted ones."""
    condition = sa.true() if kind is None else document_versions.c.kind == kind
    return _newest(connection, condition, at)


def versions_of(
    connection: sa.Connection, documents: Iterable[DocumentRef], at: int | None = None
) -> dict[DocumentRef, DocumentVersion]:
    """Return the newest version of each given document that ever existed, now or at a revision."""
    names: dict[str, list[str]] = {}
    for ref in documents:
        names.setdefault(ref.kind, []).append(ref.name)
    found: dict[DocumentRef, DocumentVersion] = {}
    for kind, of_kind in names.items():
        for some in batches(of_kind):
            columns = document_versions.c
            found |= _newest(connection, sa.and_(columns.kind == kind, columns.name.in_(some)), at)
    return found


def _newest(
    connection: sa.Connection, condition: sa.ColumnElement[bool], at: int | None
) -> dict[DocumentRef, DocumentVersion]:
    columns = document_versions.c
    newest = sa.select(columns.kind, columns.name, sa.func.max(columns.version).label("version")).where(condition)
    if at is not None:
        newest = newest.where(columns.revision <= at)
    selected = newest.group_by(columns.kind, columns.name).subquery()
    is_newest = sa.and_(*(columns[name] == selected.c[name] for name in ("kind", "name", "version")))
    statement = sa.select(document_versions).select_from(document_versions.join(selected, is_newest))
    rows = connection.execute(statement.order_by(columns.kind.desc(), columns.name))
    found = [DocumentVersion(*row) for row in rows]
    return {version.ref: version for version in found}


def versions_in(connection: sa.Connection, revision: int) -> dict[str, int]:
    """Return the versions of the documents that a revision created, by ``Kind/name``."""
    columns = document_versions.c
    statement = sa.select(columns.kind, columns.name, columns.version).where(columns.revision == revision)
    return {f"{kind}/{name}": version for kind, name, version in connection.execute(statement)}


def changed_since(connection: sa.Connection, revision: int) -> list[DocumentRef]:
    """Return the documents that have a version after a revision."""
    columns = document_versions.c
    statement = sa.select(columns.kind, columns.name).where(columns.revision > revision).distinct()
    return [DocumentRef(*row) for row in connection.execute(statement)]


def document_version(connection: sa.Connection, ref: DocumentRef, version: int | None = None) -> DocumentVersion | None:
    """Return one version of a document; the newest if ``version`` is None."""
    statement = sa.select(document_versions).where(
        document_versions.c.kind == ref.kind, document_versions.c.name == ref.name
    )
    if version is not None:
        statement = statement.where(document_versions.c.version == version)
    row = connection.execute(statement.order_by(document_versions.c.version.desc()).limit(1)).one_or_none()
    return None if row is None else DocumentVersion(*row)


def authored_by(connection: sa.Connection, author: str) -> list[DocumentRef]:
    """Return the existing documents whose newest version is by this author."""
    written = frozenset(connection.scalars(sa.select(revisions.c.number).where(revisions.c.author == author)))
    found = newest_versions(connection).items()
    return [ref for ref, version in found if version.tree is not None and version.revision in written]


def newest_revision(connection: sa.Connection) -> tuple[int, str]:
    """Return the number and the digest of the newest revision; 0 and ``""`` if there is none."""
    statement = sa.select(revisions.c.number, revisions.c.digest).order_by(revisions.c.number.desc()).limit(1)
    row = connection.execute(statement).one_or_none()
    return (0, "") if row is None else (row.number, row.digest)


def revision_time(connection: sa.Connection, number: int) -> datetime | None:
    """Return when a revision was accepted."""
    found: datetime | None = connection.scalar(sa.select(revisions.c.time).where(revisions.c.number == number))
    return found


def insert_revision(connection: sa.Connection, revision: Revision, versions: Iterable[DocumentVersion]) -> None:
    """Store a revision and its document versions."""
    values = msgspec.structs.asdict(revision)
    del values["documents"]
    connection.execute(revisions.insert(), [values])
    connection.execute(document_versions.insert(), [msgspec.structs.asdict(version) for version in versions])


def find_revisions(
    connection: sa.Connection,
    *,
    limit: int = 1,
    number: int | None = None,
    before: int | None = None,
    document: DocumentRef | None = None,
) -> list[Revision]:
    """Return revisions with the documents that they touched, newest first."""
    statement = sa.select(revisions).order_by(revisions.c.number.desc()).limit(limit)
    if number is not None:
        statement = statement.where(revisions.c.number == number)
    if before is not None:
        statement = statement.where(revisions.c.number < before)
    if document is not None:
        touched = sa.select(document_versions.c.revision).where(
            document_versions.c.kind == document.kind, document_versions.c.name == document.name
        )
        statement = statement.where(revisions.c.number.in_(touched))
    rows = connection.execute(statement).all()
    touched_by = _documents_of(connection, [row.number for row in rows])
    return [Revision(**row._mapping, documents=tuple(touched_by.get(row.number, ()))) for row in rows]  # noqa: SLF001 - public in SQLAlchemy


def _documents_of(connection: sa.Connection, numbers: list[int]) -> dict[int, list[DocumentRef]]:
    columns = document_versions.c
    statement = (
        sa.select(columns.revision, columns.kind, columns.name)
        .where(columns.revision.in_(numbers))
        .order_by(columns.kind, columns.name)
    )
    found: dict[int, list[DocumentRef]] = {}
    for revision, kind, name in connection.execute(statement):
        found.setdefault(revision, []).append(DocumentRef(kind, name))
    return found


def insert_change(connection: sa.Connection, change: Change) -> None:
    """Store an accepted change."""
    connection.execute(changes.insert(), [{"id": change.id, "revision": change.revision, "body": change}])


def find_change(connection: sa.Connection, change_id: str) -> Change | None:
    """Return an accepted change, or None."""
    found: Change | None = connection.scalar(sa.select(changes.c.body).where(changes.c.id == change_id))
    return found
