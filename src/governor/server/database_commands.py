"""The ``governor db`` commands. Import the store only when they run."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from governor.process.settings import prefix
from governor.server.settings import Settings

_STREAM: Final = Path("-")

_data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Settings().data_dir,
    envvar=f"{prefix('server')}DATA_DIR",
    show_default=True,
    show_envvar=True,
    help="Data directory of the server.",
)


@click.group()
def db() -> None:
    """Back up, restore or prune the server's database, on the machine of the server."""


@db.command(short_help="Write a consistent copy of the database; the server may run.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@_data_dir_option
def backup(file: Path, data_dir: Path) -> None:
    """Write a consistent copy of the database to a new FILE, or to stdout if it is "-". The server may run meanwhile.

    The copy contains no key. Keep sealing.key, delivery.key and authority.pem of the data directory in another place:
    sensitive values can only be read with them, and agents trust only deliveries signed with them.
    """
    from governor.server.data_directory import DATABASE  # noqa: PLC0415 - keep help and completion fast
    from governor.server.store.backup import backup as copy  # noqa: PLC0415

    with _as_target(file) as target:
        copy(data_dir / DATABASE, target)
    click.echo(f"{data_dir / DATABASE} copied to {_name(file, 'stdout')}", err=file == _STREAM)


@db.command(short_help="Replace the database by a backup; the server must be stopped.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@_data_dir_option
def restore(file: Path, data_dir: Path) -> None:
    """Replace the database of a stopped server by the backup FILE, or by stdin if it is "-".

    Agents that hold newer deliveries than the backup get the restored state again, and nothing counts as verified until
    they confirm it. Tokens and keys that were revoked after the backup are valid again: revoke them again.
    """
    from governor.process.telemetry import logging  # noqa: PLC0415 - keep help and completion fast
    from governor.server.data_directory import DATABASE, locked  # noqa: PLC0415
    from governor.server.store.backup import restore as replace  # noqa: PLC0415

    logging.configure("db", level="warning")
    name = _name(file, "stdin")
    with locked(data_dir.absolute()) as directory, _as_source(file) as source:
        restored = replace(source, directory / DATABASE, name)
    click.echo(f"{data_dir / DATABASE} restored from {name} as incarnation {restored.incarnation}")
    if restored.replaced is not None:
        click.echo(f"the replaced database is {restored.replaced}", err=True)
    click.echo(
        "tokens and agent keys that were revoked after the backup are valid again: revoke them again "
        "(`governor token list`, `governor runtime revoke`)",
        err=True,
    )


@db.command(short_help="Remove superseded deliveries; the server may run.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=Settings().keep_deliveries,
    show_default=True,
    help="Deliveries kept for each runtime.",
)
@_data_dir_option
def prune(keep: int, data_dir: Path) -> None:
    """Remove superseded deliveries with their reports, as the server does every hour. The server may run meanwhile.

    Documents, revisions and the newest deliveries are kept. The file does not shrink; its free space is used again.
    """
    from governor.server.data_directory import DATABASE  # noqa: PLC0415 - keep help and completion fast
    from governor.server.store.backup import prune as remove  # noqa: PLC0415

    removed = remove(data_dir / DATABASE, keep)
    click.echo(f"{removed} superseded deliveries removed, at most {keep} kept for each runtime")


def _name(file: Path, stream: str) -> str:
    """Return how to call the file in messages."""
    return stream if file == _STREAM else str(file)


@contextmanager
def _as_target(file: Path) -> Iterator[Path]:
    """Yield the file to write; for a stream, one whose content is written to stdout afterwards."""
    if file != _STREAM:
        yield file
        return
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "backup.db"
        yield written
        with written.open("rb") as content:
            shutil.copyfileobj(content, sys.stdout.buffer)


@contextmanager
def _as_source(file: Path) -> Iterator[Path]:
    """Yield the file to read; for a stream, one with the content of stdin."""
    if file != _STREAM:
        yield file
        return
    with tempfile.TemporaryDirectory() as directory:
        received = Path(directory) / "backup.db"
        with received.open("wb") as content:
            shutil.copyfileobj(sys.stdin.buffer, content)
        yield received
