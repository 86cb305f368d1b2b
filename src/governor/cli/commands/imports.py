"""``import``: what other formats say becomes documents, in one change."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from governor.cli import files
from governor.cli.commands.change import Wish, carry_out, change_options
from governor.cli.commands.follow import warn
from governor.cli.connection import ask
from governor.cli.options import connection_options
from governor.server.sources import poc_format
from governor.wire.rest import ChangeRequest

if TYPE_CHECKING:
    from governor.client import Client


@click.command("import")
@click.option(
    "--poc", "file", required=True, type=click.Path(path_type=Path), metavar="FILE", help="YAML with `runtimes:`."
)
@change_options
@connection_options()
def import_documents(file: Path, **wish: Any) -> int:
    """Take over the file of the proof of concept, as one change.

    Each entry becomes a Runtime of its id, unless there is one already, and a Profile `poc-<id>` with its Component.
    """
    parsed = files.read([str(file)])
    imported = poc_format.read(parsed)
    warn(imported.warnings)
    known = ask(_known_runtimes)
    return carry_out(ChangeRequest(documents=imported.documents(known)), (), Wish(**wish))


async def _known_runtimes(client: "Client") -> list[str]:
    return [each.name for each in await client.documents("Runtime")]
