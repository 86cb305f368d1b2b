"""``history``: the revisions, newest first, and for one document the differences of each revision."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from governor.cli.commands.get import MAX_REVISIONS, limit_option
from governor.cli.connection import call_server
from governor.cli.options import connection_options
from governor.cli.param_types import DocumentName
from governor.domain.changes import Revision
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.values.difftext import difference_lines
from governor.values.printing import age, one_line, timestamp
from governor.values.treediff import diff
from governor.wire.rest import DocumentView

if TYPE_CHECKING:
    from governor.client import Client


@click.command()
@click.argument("document", required=False, type=DocumentName(), metavar="[KIND/NAME]")
@limit_option
@connection_options()
def history(document: DocumentRef | None, limit: int) -> None:
    """Show the revisions, newest first, and what each of them changed.

    With KIND/NAME only the revisions of that document are shown, with their differences; sensitive values are masked.
    """

    async def fetch(client: "Client") -> tuple[tuple[Revision, ...], dict[int, DocumentView]]:
        revisions = await client.revisions(limit, document=document)
        return revisions, await _versions(client, document, len(revisions)) if document else {}

    revisions, versions = call_server(fetch)
    if document and not revisions:
        raise GovernorError(Kind.NOT_FOUND, "not-found", f"document {document} has never existed")
    click.echo(history_text(revisions, versions, datetime.now(UTC)))


async def _versions(client: "Client", document: DocumentRef, count: int) -> dict[int, DocumentView]:
    """Return the newest ``count`` versions of a document and the one before them, by number."""
    newest = await _newest_version(client, document)
    numbers = range(max(1, newest - count), newest + 1)
    views = await asyncio.gather(*(client.document(document, number) for number in numbers))
    return dict(zip(numbers, views, strict=True))


async def _newest_version(client: "Client", document: DocumentRef) -> int:
    try:
        return (await client.document(document)).version
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
    # A deleted document has no current version; it has one version per revision that touched it.
    page = await client.revisions(MAX_REVISIONS, document=document)
    count = len(page)
    while len(page) == MAX_REVISIONS:
        page = await client.revisions(MAX_REVISIONS, page[-1].number, document)
        count += len(page)
    return count


def history_text(revisions: Sequence[Revision], versions: Mapping[int, DocumentView], now: datetime) -> str:
    """Return the revisions as text; ``versions`` are those of the one document to show, by number."""
    if not revisions:
        return "there are no revisions yet"
    by_revision = {version.revision: version for version in versions.values()}
    return "\n\n".join("\n".join(_paragraph(each, by_revision, versions, now)) for each in revisions)


def _paragraph(
    revision: Revision, by_revision: Mapping[int, DocumentView], versions: Mapping[int, DocumentView], now: datetime
) -> Iterator[str]:
    created = f"{age(revision.time, now)} ago ({timestamp(revision.time)})"
    yield f"revision {revision.number}, {created}, by {revision.author}"
    if revision.message:
        yield f"  {one_line(revision.message)}"
    version = by_revision.get(revision.number)
    if version is None:
        yield from (f"  {document}" for document in revision.documents)
        return
    others = len(revision.documents) - 1
    yield f"  {version.kind}/{version.name} version {version.version}{f' (and {others} more)' if others else ''}"
    yield from (f"  {line}" for line in _version_lines(versions.get(version.version - 1), version))


def _version_lines(old: DocumentView | None, new: DocumentView) -> Iterator[str]:
    before = old.document if old else None
    if new.document is None:
        yield "deleted"
    elif before is None:
        yield "created" if new.version == 1 or old else "(the previous version is not shown)"
    else:
        differences = diff(before, new.document)
        yield from (line for each in differences for line in difference_lines(each))
        if not differences:
            yield "only masked values changed"
