"""The console script: the tree of commands and the one place where a failure becomes an exit code."""

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
from governor.process.exits import BROKEN_PIPE, DONE, EXIT_CODE, INTERRUPTED, USAGE, describe

PROGRAM: Final = "governor"
COMPLETION: Final = "_GOVERNOR_COMPLETE"

COMMANDS: Final = {
    "apply": Entry("governor.cli.changing:apply", "Put documents and follow the change until it is verified in use."),
    "diff": Entry("governor.cli.changing:diff", "Show what `apply` would change, for documents and for runtimes."),
    "delete": Entry("governor.cli.changing:delete", "Delete documents and follow the change."),
    "rollback": Entry("governor.cli.changing:rollback", "Make documents what they were at a revision; follow it."),
    "import": Entry("governor.cli.importing:import_documents", "Take over the file of the proof of concept."),
    "get": Entry("governor.cli.showing:get", "List runtimes, profiles or revisions, or show one of them."),
    "describe": Entry("governor.cli.showing:describe", "Show everything that is known about one thing."),
    "explain": Entry("governor.cli.explaining:explain", "Show which profile decided each field of a runtime."),
    "history": Entry("governor.cli.showing:history", "Show the revisions, newest first, and what each one changed."),
    "runtime": Entry("governor.cli.runtimes:runtime", "Retry a runtime's newest delivery, or revoke its agent's key."),
    "token": Entry("governor.cli.tokens:token", "Make, list and revoke tokens of people, programs and agents."),
    "doctor": Entry("governor.cli.doctor:doctor", "Find out what is wrong with this installation, and what to do."),
    "server": Entry("governor.server.commands:server", "Run the server."),
    "agent": Entry("governor.agent.commands:agent", "Run the agent of one runtime."),
    "runtime-proxy": Entry(
        "governor.runtimeproxy.commands:runtime_proxy", "Let plugins change how a node's pods start."
    ),
    "completion": Entry("governor.cli.completion:completion", "Print the completion script of a shell."),
}


@click.group(cls=LazyGroup, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@connection_options(hidden=False)
@click.version_option(governor.__version__, prog_name=PROGRAM)
def cli() -> None:
    """Keep a fleet of application runtimes in the state that you asked for, and prove it."""


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        result = _invoke(arguments)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except GovernorError as error:
        click.echo("\n".join(describe(error, next_step(error))), err=True)
        return EXIT_CODE[error.kind]
    except click.ClickException as error:
        error.show()
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception:  # noqa: BLE001 - the edge of the program; 1 would mean "the answer is no"
        traceback.print_exc()
        click.echo("error: this is a defect of governor; please report it with the lines above", err=True)
        return EXIT_CODE[Kind.INTERNAL]
    return result if isinstance(result, int) else DONE


def _invoke(arguments: Sequence[str]) -> object:
    """What ``click.Group.main`` does, but for its own ideas about exit codes: it ends a broken pipe with 1."""
    instruction = os.environ.get(COMPLETION)
    if instruction:
        return shell_complete(cli, {}, PROGRAM, COMPLETION, instruction)
    with cli.make_context(PROGRAM, list(arguments)) as context:
        return cli.invoke(context)


if __name__ == "__main__":
    main()
