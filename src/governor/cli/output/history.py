"""Revisions as a story, newest first, and with a document what each of them changed in it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from governor.cli.output.diff import difference_lines
from governor.cli.output.tables import age, moment
from governor.domain.changes import Revision
from governor.values.printing import one_line
from governor.values.treediff import diff
from governor.wire.rest import DocumentView


def history_text(revisions: Sequence[Revision], versions: Mapping[int, DocumentView], now: datetime) -> str:
    """The revisions; ``versions`` are those of one document by number, if the story is about one."""
    if not revisions:
        return "there are no revisions yet"
    by_revision = {version.revision: version for version in versions.values()}
    return "\n\n".join("\n".join(_paragraph(each, by_revision, versions, now)) for each in revisions)


def _paragraph(
    revision: Revision, by_revision: Mapping[int, DocumentView], versions: Mapping[int, DocumentView], now: datetime
) -> Iterator[str]:
    yield f"revision {revision.number}, {age(revision.time, now)} ago ({moment(revision.time)}), by {revision.author}"
    if revision.message:
        yield f"  {one_line(revision.message)}"
    version = by_revision.get(revision.number)
    if version is None:
        yield from (f"  {document}" for document in revision.documents)
        return
    others = len(revision.documents) - 1
    yield f"  {version.kind}/{version.name} version {version.version}{f' (and {others} more)' if others else ''}"
    yield from (f"  {line}" for line in _changed(versions.get(version.version - 1), version))


def _changed(old: DocumentView | None, new: DocumentView) -> Iterator[str]:
    before = old.document if old else None
    if new.document is None:
        yield "deleted"
    elif before is None:
        yield "created" if new.version == 1 or old else "(the version before it is not shown)"
    else:
        differences = diff(before, new.document)
        yield from (line for each in differences for line in difference_lines(each))
        if not differences:
            yield "only masked values changed"
