"""``get``, ``describe`` and ``history``: ask the server and show what it says."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from governor.cli.connection import ask
from governor.cli.options import connection_options
from governor.cli.output.description import runtime_text
from governor.cli.output.history import history_text
from governor.cli.output.tables import profiles_table, revisions_table, runtimes_table
from governor.cli.parameters import DocumentName
from governor.domain.changes import Revision
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.process.options import output_option
from governor.values.printing import Format, machine_text
from governor.wire.rest import DocumentView, RuntimeView

if TYPE_CHECKING:
    from governor.client import Client

_PAGE: Final = 500

limit_option: Final = click.option(
    "--limit", type=click.IntRange(1, _PAGE), default=20, show_default=True, help="How many revisions at most."
)


class Nouns(click.Group):
    """A group whose commands are nouns, found in singular and plural."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a noun by either form."""
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, f"{cmd_name.removesuffix('s')}s")


@click.group(cls=Nouns)
def get() -> None:
    """List runtimes, profiles or revisions, or show one of them."""


@get.command("runtimes")
@click.argument("name", required=False)
@output_option
@connection_options()
def get_runtimes(name: str | None, output: Format) -> None:
    """List the runtimes with their states, or show one."""

    async def question(client: "Client") -> tuple[RuntimeView, ...]:
        return (await client.runtime(name),) if name else await client.runtimes()

    found = ask(question)
    _show(found if name is None else found[0], output, lambda: runtimes_table(found, _now()))


@get.command("profiles")
@click.argument("name", required=False)
@output_option
@connection_options()
def get_profiles(name: str | None, output: Format) -> None:
    """List the profiles, or show one.

    In JSON and YAML the documents themselves are printed, as `apply` takes them; a masked value is kept by it.
    """

    async def question(client: "Client") -> tuple[DocumentView, ...]:
        return (await client.document(DocumentRef("Profile", name)),) if name else await client.documents("Profile")

    found = ask(question)
    documents = [view.document for view in found]
    if output == "yaml":
        click.echo("\n---\n".join(machine_text(document, output) for document in documents))
    else:
        _show(documents if name is None else documents[0], output, lambda: profiles_table(found))


@get.command("revisions")
@click.argument("number", required=False, type=int)
@limit_option
@output_option
@connection_options()
def get_revisions(number: int | None, limit: int, output: Format) -> None:
    """List the revisions, newest first, or show one."""

    async def question(client: "Client") -> tuple[Revision, ...]:
        return (await client.revision(number),) if number is not None else await client.revisions(limit)

    found = ask(question)
    _show(found if number is None else found[0], output, lambda: revisions_table(found, _now()))


@click.group()
def describe() -> None:
    """Show everything that is known about one thing."""


@describe.command("runtime")
@click.argument("name")
@connection_options()
def describe_runtime(name: str) -> None:
    """Show a runtime: conditions, evidence with source and age, delivery, and what its agent reported."""
    found = ask(lambda client: client.runtime(name))
    click.echo(runtime_text(found, _now()))


@click.command()
@click.argument("document", required=False, type=DocumentName(), metavar="[KIND/NAME]")
@limit_option
@connection_options()
def history(document: DocumentRef | None, limit: int) -> None:
    """Show the revisions, newest first, and what each one changed.

    With a document only the revisions that touched it, each with its differences; sensitive values stay masked.
    """

    async def question(client: "Client") -> tuple[tuple[Revision, ...], dict[int, DocumentView]]:
        revisions = await client.revisions(limit, document=document)
        return revisions, await _versions(client, document, len(revisions)) if document else {}

    revisions, versions = ask(question)
    if document and not revisions:
        raise GovernorError(Kind.NOT_FOUND, "not-found", f"there is no document {document}, and there never was one")
    click.echo(history_text(revisions, versions, _now()))


async def _versions(client: "Client", document: DocumentRef, count: int) -> dict[int, DocumentView]:
    """The newest ``count`` versions of a document and the one before them, by number."""
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
    # A deleted document answers only to its versions; each revision that touched it made one.
    page = await client.revisions(_PAGE, document=document)
    count = len(page)
    while len(page) == _PAGE:
        page = await client.revisions(_PAGE, page[-1].number, document)
        count += len(page)
    return count


def _show(value: object, output: Format, table: Callable[[], str]) -> None:
    click.echo(table() if output == "table" else machine_text(value, output))


def _now() -> datetime:
    return datetime.now(UTC)
