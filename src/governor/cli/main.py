"""The console script: the tree of commands and the one place where a failure becomes an exit code."""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import shell_complete

import governor
from governor.cli.advice import next_step
from governor.cli.lazy import Entry, LazyGroup
from governor.cli.options import connection_options
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import BROKEN_PIPE, DONE, EXIT_CODE, INTERRUPTED, USAGE, describe

PROGRAM: Final = "governor"
COMPLETION: Final = "_GOVERNOR_COMPLETE"

_UNWRITTEN: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Why an output cannot be written. Whatever else a command writes reports such a failure in its own words."""

COMMANDS: Final = {
    "apply": Entry(
        "governor.cli.commands.change:apply", "Put documents and follow the change until it is verified in use."
    ),
    "diff": Entry(
        "governor.cli.commands.change:diff", "Show what `apply` would change, for documents and for runtimes."
    ),
    "delete": Entry("governor.cli.commands.change:delete", "Delete documents and follow the change."),
    "rollback": Entry(
        "governor.cli.commands.change:rollback", "Make documents what they were at a revision; follow it."
    ),
    "import": Entry("governor.cli.commands.imports:import_documents", "Take over the file of the proof of concept."),
    "get": Entry("governor.cli.commands.get:get", "List runtimes, profiles or revisions, or show one of them."),
    "describe": Entry("governor.cli.commands.get:describe", "Show everything that is known about one thing."),
    "explain": Entry("governor.cli.commands.explain:explain", "Show which profile decided each field of a runtime."),
    "history": Entry(
        "governor.cli.commands.get:history", "Show the revisions, newest first, and what each one changed."
    ),
    "runtime": Entry(
        "governor.cli.commands.runtime:runtime", "Retry a runtime's newest delivery, or revoke its agent's key."
    ),
    "token": Entry("governor.cli.commands.token:token", "Make, list and revoke tokens of people, programs and agents."),
    "doctor": Entry(
        "governor.cli.commands.doctor:doctor", "Find out what is wrong with this installation, and what to do."
    ),
    "server": Entry("governor.server.commands:server", "Run the server."),
    "agent": Entry("governor.agent.commands:agent", "Run the agent of one runtime."),
    "runtime-proxy": Entry(
        "governor.runtimeproxy.commands:runtime_proxy", "Let plugins change how a node's pods start."
    ),
    "completion": Entry("governor.cli.commands.completion:completion", "Print the completion script of a shell."),
}


@click.group(cls=LazyGroup, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@connection_options(hidden=False)
@click.version_option(governor.__version__, prog_name=PROGRAM)
def cli() -> None:
    """Keep a fleet of application runtimes in the state that you asked for, and prove it."""


def main() -> None:
    """Run the command line of this process."""
    _open_missing_files()
    # A name that is no text of the terminal's encoding, as a file may have, is shown all the same.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _ended(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        code = BROKEN_PIPE
    except OSError as error:
        code = EXIT_CODE[Kind.EXHAUSTED]
        _complain(f"error: the output cannot be written: {error.strerror}")
    else:
        return code
    # Python would complain again when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _ended(arguments: Sequence[str]) -> int:
    """Run it and say how it failed; raises OSError if the output cannot be written."""
    try:
        result = _invoke(arguments)
    except click.exceptions.Exit as end:
        return end.exit_code
    except GovernorError as error:
        _complain(*describe(error, next_step(error)))
        return EXIT_CODE[error.kind]
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITTEN and error.filename is None:
            raise
        _complain(traceback.format_exc(), "error: this is a defect of governor; please report it with the lines above")
        return EXIT_CODE[Kind.INTERNAL]
    return result if isinstance(result, int) else DONE


def _complain(*lines: str) -> None:
    """On stderr; whoever closed that is not told, and the exit code stays what it is."""
    with contextlib.suppress(OSError):
        click.echo("\n".join(lines), err=True)


def _open_missing_files() -> None:
    """What is opened later must not get the number of an input or output that was closed, and be taken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _invoke(arguments: Sequence[str]) -> object:
    """What ``click.Group.main`` does, but for its own ideas about exit codes: it ends a broken pipe with 1."""
    instruction = os.environ.get(COMPLETION)
    if instruction:
        return shell_complete(cli, {}, PROGRAM, COMPLETION, instruction)
    with cli.make_context(PROGRAM, list(arguments)) as context:
        return cli.invoke(context)


if __name__ == "__main__":
    main()
