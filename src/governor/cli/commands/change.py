"""``apply``, ``diff``, ``delete``, ``rollback`` and ``import``: each sends one change request and follows the change.

Problems are reported at file and line, whether they were found here or by the server.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from governor.cli import files
from governor.cli.commands.follow import WaitOptions, follow, print_lines, print_result, wait_options, warn
from governor.cli.commands.inventory_import import import_inventory
from governor.cli.connection import call_server
from governor.cli.options import connection_options
from governor.cli.output.diff import change_lines, document_title
from governor.cli.output.progress import CommandResult
from governor.cli.param_types import DocumentName
from governor.domain.changes import Change
from governor.domain.documents import DocumentRef, locate
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import NEGATIVE, SUCCESS
from governor.wire.rest import ChangeRequest, Rollback
from governor.yamltext import Parsed, dump

if TYPE_CHECKING:
    from governor.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN: Final = "the change may have been accepted; check `governor history`"


class ChangeOptions(WaitOptions, frozen=True):
    """The options of every command that changes documents."""

    message: str
    dry_run: bool
    allow_deletions: bool
    all_runtimes: bool = False


def change_options(function: F) -> F:
    """Add the options that make up ``ChangeOptions``."""
    for option in _CHANGE_OPTIONS:
        function = option(function)
    return wait_options(function)


_allow_deletions_option: Final = click.option("--allow-deletions", is_flag=True, help="Allow large deletions.")
_all_runtimes_option: Final = click.option(
    "--all-runtimes", is_flag=True, help="Show every affected runtime instead of one line for all with the same change."
)
_CHANGE_OPTIONS: Final = (
    _all_runtimes_option,
    _allow_deletions_option,
    click.option("--dry-run", is_flag=True, help="Show what would change, without changing it."),
    click.option("-m", "--message", default="", help="Reason for the change; recorded in the history."),
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
def apply(sources: Sequence[str], **options: Any) -> int:
    """Apply documents and wait until the change is verified.

    All documents form one change, which is accepted or rejected as a whole. A document replaces the one of the same
    kind and name; other documents stay as they are.
    """
    parsed = files.read(sources)
    return submit(ChangeRequest(documents=_trees(parsed)), parsed, ChangeOptions(**options))


@click.command()
@click.argument("documents", nargs=-1, required=True, type=DocumentName(), metavar="KIND/NAME...")
@change_options
@connection_options()
def delete(documents: Sequence[DocumentRef], **options: Any) -> int:
    """Delete documents, as one change, and wait until the change is verified."""
    return submit(ChangeRequest(deletions=tuple(documents)), (), ChangeOptions(**options))


@click.command()
@click.argument("target", nargs=-1, metavar="[REVISION] [KIND/NAME...]")
@change_options
@connection_options()
def rollback(target: Sequence[str], **options: Any) -> int:
    """Restore documents to an earlier revision and wait until the change is verified.

    REVISION defaults to the one before the newest. Without KIND/NAME all documents are restored, and those created
    later are deleted. The history is kept: the old contents become new versions in a new revision. Use `--dry-run` to
    see the change first.
    """
    first, names = (target[0], target[1:]) if target and target[0].isdecimal() else (None, target)
    documents = tuple(DocumentName().convert(name, None, click.get_current_context()) for name in names)
    requested = Rollback(revision=None if first is None else int(first), documents=documents)
    return submit(ChangeRequest(rollback=requested), (), ChangeOptions(**options))


@click.command("import")
@click.option("--from-runtime", "runtime", metavar="ID", help="Import what the agent of this runtime found.")
@click.option(
    "--poc", "file", type=click.Path(path_type=Path), metavar="FILE", help="YAML file of the proof of concept."
)
@click.option(
    "--output",
    "target",
    type=click.Path(allow_dash=True),
    metavar="FILE|-",
    help="With --from-runtime: write the Profile, and change nothing.",
)
@change_options
@connection_options()
def import_documents(runtime: str | None, file: Path | None, target: str | None, **options: Any) -> int:
    """Import the Dapr resources that a runtime has, or a file of the proof of concept, as one change.

    From a runtime, the resources that no runtime owns become the Profile `imported-<id>`. Its agent takes them over as
    they are, and restarts nothing. A resource with an inline sensitive value is left out.

    Of a file, each entry becomes a Runtime named by its id, unless that exists already, and a Profile `poc-<id>` with
    its Component.
    """
    if (runtime is None) == (file is None):
        raise click.UsageError("one of --from-runtime and --poc is required")
    if file is not None:
        if target is not None:
            raise click.UsageError("--output needs --from-runtime")
        return _import_file(file, ChangeOptions(**options))
    return _import_runtime(str(runtime), target, ChangeOptions(**options))


def _import_file(file: Path, options: ChangeOptions) -> int:
    from governor.server.sources import poc_format  # noqa: PLC0415 - only the import reads the old format

    imported = poc_format.read(files.read([str(file)]))
    warn(imported.warnings)
    known = call_server(_runtime_names)
    return submit(ChangeRequest(documents=imported.documents(known)), (), options)


def _import_runtime(runtime: str, target: str | None, options: ChangeOptions) -> int:
    imported = import_inventory(runtime, call_server(lambda client: client.inventory(runtime)).inventory)
    warn(imported.notes)
    if target is not None:
        with click.open_file(target, "w", encoding="utf-8") as opened:
            opened.write(dump(imported.document))
        return SUCCESS
    # What is owned already is not in the inventory's content: replacing the profile would remove it.
    if imported.ref.name in call_server(_profile_names):
        message = f"{imported.ref} exists already: add the new resources to it with --output"
        raise GovernorError(Kind.EXISTS, "profile-exists", message)
    return submit(ChangeRequest(documents=(imported.document,), if_match={str(imported.ref): 0}), (), options)


@click.command()
@_files_option
@_allow_deletions_option
@_all_runtimes_option
@connection_options()
def diff(sources: Sequence[str], allow_deletions: bool, all_runtimes: bool) -> int:
    """Show what `apply` would change in documents and runtimes.

    Exits with 0 if nothing differs, with 1 if something does, and with a higher code on an error.
    """
    parsed = files.read(sources)
    request = ChangeRequest(
        documents=_trees(parsed), dry_run=True, allow_deletions=allow_deletions, all_runtimes=all_runtimes
    )
    change = send(request, parsed)
    print_lines(change_lines(change, all_runtimes=all_runtimes))
    warn(change.warnings)
    return NEGATIVE if change.documents else SUCCESS


def submit(request: ChangeRequest, parsed: Sequence[Parsed], options: ChangeOptions) -> int:
    """Send one change, follow it as the options say, and return the exit code.

    ``parsed`` are the texts that the documents were read from.
    """
    request = msgspec.structs.replace(
        request,
        message=options.message,
        dry_run=options.dry_run,
        allow_deletions=options.allow_deletions,
        all_runtimes=options.all_runtimes,
    )
    change = send(request, parsed)
    warn(change.warnings)
    if options.dry_run:
        lines = change_lines(change, all_runtimes=options.all_runtimes)
        print_lines([*lines, "dry run: nothing was changed"])
        return SUCCESS
    if not options.quiet:
        print_lines(map(document_title, change.documents))
    if change.revision is None:
        return print_result(CommandResult(SUCCESS, "no changes: every document is up to date"), options)
    if not options.wait:
        return print_result(CommandResult(SUCCESS, f"revision {change.revision} accepted"), options)
    return print_result(follow(change.revision, options), options)


def _trees(parsed: Sequence[Parsed]) -> tuple[dict[str, Any], ...]:
    return tuple(item.value for item in parsed if isinstance(item.value, dict))


async def _runtime_names(client: "Client") -> list[str]:
    return [each.name for each in await client.documents("Runtime")]


async def _profile_names(client: "Client") -> list[str]:
    return [each.name for each in await client.documents("Profile")]


def send(request: ChangeRequest, parsed: Sequence[Parsed] = ()) -> Change:
    """Send one change and return it; an error names the place in the texts, and what became of the change."""
    try:
        return call_server(lambda client: client.change(request))
    except GovernorError as error:
        effect = _UNKNOWN if _may_be_accepted(error) and not request.dry_run else "nothing was changed"
        raise GovernorError(
            error.kind, error.code, f"{error.message}; {effect}", locate(error.details, parsed)
        ) from error
    except KeyboardInterrupt:
        warn(["nothing was changed" if request.dry_run else _UNKNOWN])
        raise


def _may_be_accepted(error: GovernorError) -> bool:
    """Whether the server may have accepted the change although its response was lost."""
    return error.kind in (Kind.DEADLINE, Kind.INTERNAL) or error.code in ("connection-lost", "gateway")
