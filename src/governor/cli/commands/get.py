"""``get`` and ``describe``: fetch from the server and print."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from governor.cli.connection import call_server
from governor.cli.groups import NounGroup
from governor.cli.options import connection_options
from governor.cli.output.description import runtime_text
from governor.cli.output.tables import profiles_table, revisions_table, runtimes_table
from governor.domain.changes import Revision
from governor.domain.documents import DocumentRef
from governor.process.options import output_option
from governor.values.printing import Format, machine_text
from governor.wire.rest import DocumentView, RuntimeView

if TYPE_CHECKING:
    from governor.client import Client

MAX_REVISIONS: Final = 500

limit_option: Final = click.option(
    "--limit",
    type=click.IntRange(1, MAX_REVISIONS),
    default=20,
    show_default=True,
    help="Maximum number of revisions to show.",
)


@click.group(cls=NounGroup)
def get() -> None:
    """List runtimes, profiles or revisions, or show one of them."""


@get.command("runtimes")
@click.argument("name", required=False)
@click.option(
    "-l", "--selector", metavar="LABELS", help="Only runtimes with these labels, such as region=eu,tier!=test."
)
@click.option("--state", help="Only runtimes in this state, such as Failed or NotWatching.")
@click.option("--contains", metavar="TEXT", help="Only runtimes whose name contains this text.")
@output_option
@connection_options()
def get_runtimes(
    name: str | None, selector: str | None, state: str | None, contains: str | None, output: Format
) -> None:
    """List the runtimes with their states, or show one.

    The list has no reports; show a runtime by its name to see its report.
    """

    async def fetch(client: "Client") -> tuple[RuntimeView, ...]:
        if name is not None:
            return (await client.runtime(name),)
        return await client.runtimes(name=contains, selector=selector, state=state)

    found = call_server(fetch)
    print_found(found, output, "runtimes", lambda: runtimes_table(found, _now()), one=name is not None)


@get.command("profiles")
@click.argument("name", required=False)
@output_option
@connection_options()
def get_profiles(name: str | None, output: Format) -> None:
    """List the profiles, or show one.

    JSON and YAML print the documents as `apply` accepts them; applying a masked value keeps the stored one.
    """

    async def fetch(client: "Client") -> tuple[DocumentView, ...]:
        if name is not None:
            return (await client.document(DocumentRef("Profile", name)),)
        return await client.documents("Profile")

    found = call_server(fetch)
    documents = [view.document for view in found]
    if output == "yaml":
        click.echo("\n---\n".join(machine_text(document, output) for document in documents))
    else:
        print_found(documents, output, "profiles", lambda: profiles_table(found), one=name is not None)


@get.command("revisions")
@click.argument("number", required=False, type=int)
@limit_option
@output_option
@connection_options()
def get_revisions(number: int | None, limit: int, output: Format) -> None:
    """List the revisions, newest first, or show one."""

    async def fetch(client: "Client") -> tuple[Revision, ...]:
        return (await client.revision(number),) if number is not None else await client.revisions(limit)

    found = call_server(fetch)
    print_found(found, output, "revisions", lambda: revisions_table(found, _now()), one=number is not None)


@click.group()
def describe() -> None:
    """Show the details of a runtime."""


@describe.command("runtime")
@click.argument("name")
@connection_options()
def describe_runtime(name: str) -> None:
    """Show a runtime's conditions, delivery and report.

    Conditions and reported states include their evidence, with its source and age.
    """
    found = call_server(lambda client: client.runtime(name))
    click.echo(runtime_text(found, _now()))


def print_found(
    found: Sequence[object], output: Format, plural: str, table: Callable[[], str], *, one: bool = False
) -> None:
    """Print a list, or its ``one`` item; instead of an empty table, say on stderr that nothing was found."""
    if output != "table":
        click.echo(machine_text(found[0] if one else found, output))
    elif found:
        click.echo(table())
    else:
        click.echo(f"No {plural} found.", err=True)


def _now() -> datetime:
    return datetime.now(UTC)
