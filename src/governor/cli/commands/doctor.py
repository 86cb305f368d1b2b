"""``doctor``: look at an installation from here and say what is wrong and what to do."""

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from governor.cli.commands.diagnosis import (
    Answers,
    Diagnosis,
    Directory,
    Finding,
    about_answers,
    about_directory,
    about_failure,
    diagnose,
    diagnosis_text,
)
from governor.cli.connection import ask, is_here, server_address
from governor.cli.options import connection_options
from governor.errors import GovernorError, invalid
from governor.process.exit_codes import DONE, NO
from governor.process.options import output_option
from governor.values.printing import Format, machine_text

if TYPE_CHECKING:
    from governor.client import Client


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The data directory of a server on this machine.  [default: governor-data, if it is there]",
)
@output_option
@connection_options()
def doctor(data_dir: Path | None, output: Format) -> int:
    """Find out what is wrong with this installation, and the next command.

    Looks at the server (reachable, trusted, ready, version, clock), the token, every runtime, and the data directory
    of a server on this machine. Ends with 0 when all is well and with 1 when it found a problem.
    """
    diagnosis = diagnose([*_about_server(), *_about_data(data_dir)])
    click.echo(diagnosis_text(diagnosis) if output == "table" else machine_text(diagnosis, output))
    return _code(diagnosis)


def _code(diagnosis: Diagnosis) -> int:
    return NO if any(each.is_problem for each in diagnosis.findings) else DONE


def _about_server() -> list[Finding]:
    server = server_address()
    try:
        return list(about_answers(server, ask(_questions)))
    except GovernorError as error:
        return [about_failure(server, error)]


async def _questions(client: "Client") -> Answers:
    status = await client.status()
    time = datetime.now(UTC)
    return Answers(status, await client.runtimes(), time)


def _about_data(given: Path | None) -> Iterator[Finding]:
    from governor.server.settings import Settings  # noqa: PLC0415 - most people ask another machine

    path = given or Settings().data_dir
    if given is None and not (is_here(server_address()) and path.is_dir()):
        return
    try:
        yield from about_directory(_look_at(path))
    except OSError as error:
        message = f"cannot look at {path}: {error.strerror or error}"
        yield about_failure(str(path), invalid("data-dir", message))


def _look_at(path: Path) -> Directory:
    """See a data directory. Files that a person may read anyway are left out. Blocking."""
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.iterdir() if each.suffix != ".url"}
    space = os.statvfs(path)
    return Directory(path, {".": stat.S_IMODE(path.stat().st_mode), **modes}, space.f_bavail * space.f_frsize)
