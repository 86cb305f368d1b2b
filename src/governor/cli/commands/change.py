"""``apply``, ``diff``, ``delete``, ``rollback``: one change request each, sent once, followed until it is in use.

What is wrong is told at file and line, wherever it was found: here or by the server.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
import msgspec

from governor.cli import files
from governor.cli.commands.follow import Patience, end, follow, patience_options, say, warn
from governor.cli.connection import ask
from governor.cli.options import connection_options
from governor.cli.output.diff import change_lines, document_title
from governor.cli.output.progress import Ending
from governor.cli.parameters import DocumentName
from governor.domain.changes import Change
from governor.domain.documents import DocumentRef, locate
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import DONE, NO
from governor.wire.rest import ChangeRequest, Rollback
from governor.yamltext import Parsed

F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN: Final = "it is not known whether the change was accepted; see `governor history`"


class Wish(Patience, frozen=True):
    """What the person wants besides the change itself."""

    message: str
    dry_run: bool
    allow_deletions: bool


def change_options(function: F) -> F:
    """The options of every command that changes something; together they are a ``Wish``."""
    for option in _CHANGE_OPTIONS:
        function = option(function)
    return patience_options(function)


_CHANGE_OPTIONS: Final = (
    click.option("--allow-deletions", is_flag=True, help="Accept that the change removes much."),
    click.option("--dry-run", is_flag=True, help="Show what would change; change nothing."),
    click.option("-m", "--message", default="", help="Why; stands in the history."),
)
_files_option: Final = click.option(
    "-f",
    "--filename",
    "sources",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    type=click.Path(allow_dash=True),
    help="A file, a directory (*.yaml, *.yml and *.json below it) or - for standard input; may be repeated.",
)


@click.command()
@_files_option
@change_options
@connection_options()
def apply(sources: Sequence[str], **wish: Any) -> int:
    """Put documents and follow the change until it is verified in use.

    All documents travel as one change: it is accepted whole or refused whole. A document replaces the one of its name;
    documents that are not named stay as they are.
    """
    parsed = files.read(sources)
    return carry_out(ChangeRequest(documents=_trees(parsed)), parsed, Wish(**wish))


@click.command()
@click.argument("documents", nargs=-1, required=True, type=DocumentName(), metavar="KIND/NAME...")
@change_options
@connection_options()
def delete(documents: Sequence[DocumentRef], **wish: Any) -> int:
    """Delete documents, as one change, and follow it until it is verified in use."""
    return carry_out(ChangeRequest(deletions=tuple(documents)), (), Wish(**wish))


@click.command()
@click.argument("target", nargs=-1, metavar="[REVISION] [KIND/NAME...]")
@change_options
@connection_options()
def rollback(target: Sequence[str], **wish: Any) -> int:
    """Make documents what they were at a revision, and follow that change until it is verified in use.

    Without REVISION that is the one before the newest. Without KIND/NAME all documents go back; those that came later
    are deleted. History stays: the old contents become new versions in a new revision. `--dry-run` shows the change.
    """
    first, names = (target[0], target[1:]) if target and target[0].isdecimal() else (None, target)
    documents = tuple(DocumentName().convert(name, None, click.get_current_context()) for name in names)
    asked = Rollback(revision=None if first is None else int(first), documents=documents)
    return carry_out(ChangeRequest(rollback=asked), (), Wish(**wish))


@click.command()
@_files_option
@click.option("--allow-deletions", is_flag=True, help="Accept that the change removes much.")
@connection_options()
def diff(sources: Sequence[str], allow_deletions: bool) -> int:
    """Show what `apply` would change, for documents and for runtimes.

    Ends with 0 when nothing differs, with 1 when something does, and with more when it failed.
    """
    parsed = files.read(sources)
    change = _send(ChangeRequest(documents=_trees(parsed), dry_run=True, allow_deletions=allow_deletions), parsed)
    say(change_lines(change))
    warn(change.warnings)
    return NO if change.documents else DONE


def carry_out(asked: ChangeRequest, parsed: Sequence[Parsed], wish: Wish) -> int:
    """Send one change as a person wishes, and follow it; the exit code. ``parsed`` are the texts that it came from."""
    request = msgspec.structs.replace(
        asked, message=wish.message, dry_run=wish.dry_run, allow_deletions=wish.allow_deletions
    )
    change = _send(request, parsed)
    warn(change.warnings)
    if wish.dry_run:
        say([*change_lines(change), "dry run: nothing was changed"])
        return DONE
    if not wish.quiet:
        say(map(document_title, change.documents))
    if change.revision is None:
        return end(Ending(DONE, "nothing to change: every document is as it should be"), wish)
    if not wish.wait:
        return end(Ending(DONE, f"revision {change.revision} accepted"), wish)
    return end(follow(change.revision, wish), wish)


def _trees(parsed: Sequence[Parsed]) -> tuple[dict[str, Any], ...]:
    return tuple(item.value for item in parsed if isinstance(item.value, dict))


def _send(request: ChangeRequest, parsed: Sequence[Parsed]) -> Change:
    try:
        return ask(lambda client: client.change(request))
    except GovernorError as error:
        said = _UNKNOWN if _may_have_arrived(error) and not request.dry_run else "nothing was changed"
        raise GovernorError(
            error.kind, error.code, f"{error.message}; {said}", locate(error.details, parsed)
        ) from error
    except KeyboardInterrupt:
        warn(["nothing was changed" if request.dry_run else _UNKNOWN])
        raise


def _may_have_arrived(error: GovernorError) -> bool:
    """Whether the answer was lost rather than the question."""
    return error.kind in (Kind.DEADLINE, Kind.INTERNAL) or error.code in ("connection-lost", "gateway")
