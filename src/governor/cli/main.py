"""The console script: the tree of commands, and the one place where a failure becomes an exit code."""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import get_completion_class, shell_complete

import governor
from governor.cli.groups import Entry, LazyGroup
from governor.cli.options import connection_options, next_step
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import BROKEN_PIPE, EXIT_CODE, INTERRUPTED, SUCCESS, USAGE, describe

PROGRAM: Final = "governor"
COMPLETION: Final = "_GOVERNOR_COMPLETE"

_OUTPUT_ERRORS: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of writing to the standard output; commands report those of their own files themselves."""

COMMANDS: Final = {
    "apply": Entry("governor.cli.commands.change:apply", "Apply documents and wait until the change is verified."),
    "diff": Entry("governor.cli.commands.change:diff", "Show what `apply` would change in documents and runtimes."),
    "delete": Entry("governor.cli.commands.change:delete", "Delete documents and wait until the change is verified."),
    "rollback": Entry("governor.cli.commands.change:rollback", "Restore documents to an earlier revision."),
    "import": Entry(
        "governor.cli.commands.change:import_documents", "Import what a runtime has, or a file of the proof of concept."
    ),
    "get": Entry("governor.cli.commands.get:get", "List runtimes, profiles or revisions, or show one of them."),
    "describe": Entry("governor.cli.commands.get:describe", "Show the details of a runtime."),
    "explain": Entry("governor.cli.commands.explain:explain", "Show which profile set each field of a runtime."),
    "history": Entry("governor.cli.commands.history:history", "Show the revisions and what each of them changed."),
    "runtime": Entry(
        "governor.cli.commands.runtime:runtime",
        "Install a runtime's agent, hold, resume or retry a runtime, or revoke its agent's key.",
    ),
    "token": Entry("governor.cli.commands.token:token", "Create, list and revoke tokens."),
    "doctor": Entry("governor.cli.commands.doctor:doctor", "Check this installation and show how to fix problems."),
    "server": Entry("governor.server.commands:server", "Run the server."),
    "db": Entry("governor.server.database_commands:db", "Back up, restore or prune the server's database."),
    "agent": Entry("governor.agent.commands:agent", "Run the agent of one runtime."),
    "reconciler": Entry(
        "governor.reconciler.commands:reconciler", "Run the reconciler of Helm charts, or prepare a cluster for it."
    ),
    "module": Entry("governor.reconciler.commands:module", "Show, render, compare or roll back modules."),
    "cluster": Entry("governor.reconciler.commands:cluster", "Show clusters, or make one reconcile itself."),
    "runtime-proxy": Entry(
        "governor.runtimeproxy.commands:runtime_proxy", "Run the runtime proxy, or inspect a running one."
    ),
    "completion": Entry("governor.cli.main:completion", "Print a shell completion script."),
}
SHELLS: Final = ("bash", "zsh", "fish")


@click.group(cls=LazyGroup, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@connection_options(hidden=False)
@click.version_option(governor.__version__, prog_name=PROGRAM)
def cli() -> None:
    """Keep a fleet of application runtimes in the desired state, and prove it."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    \b
    bash:  eval "$(governor completion bash)"   in ~/.bashrc
    zsh:   eval "$(governor completion zsh)"    in ~/.zshrc
    fish:  governor completion fish | source    in ~/.config/fish/config.fish
    """
    script = get_completion_class(shell)
    assert script is not None  # noqa: S101 - click knows every shell in SHELLS
    click.echo(script(ctx.find_root().command, {}, PROGRAM, COMPLETION).source())


def main() -> None:
    """Run the command line of this process."""
    _open_missing_streams()
    # File names need not be valid in the terminal's encoding; escape what is not instead of failing.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _run_command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        code = BROKEN_PIPE
    except OSError as error:
        code = EXIT_CODE[Kind.EXHAUSTED]
        _print_error(f"error: cannot write the output: {error.strerror}")
    else:
        return code
    # Python flushes at exit and would report the error again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _run_command(arguments: Sequence[str]) -> int:
    """Run one command, print its error if it fails, and return its exit code.

    Raises OSError if the output cannot be written.
    """
    try:
        result = _invoke(arguments)
    except click.exceptions.Exit as end:
        return end.exit_code
    except GovernorError as error:
        _print_error(*describe(error, next_step(error)))
        return EXIT_CODE[error.kind]
    except click.ClickException as error:
        _print_error(*_usage_error(error))
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        _print_error("interrupted")
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None:
            raise
        _print_error(traceback.format_exc(), "error: this is a bug in governor; please report it with the lines above")
        return EXIT_CODE[Kind.INTERNAL]
    return result if isinstance(result, int) else SUCCESS


def _usage_error(error: click.ClickException) -> list[str]:
    """Return the lines that click prints for a usage error, with the prefix of all other errors."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return [error.format_message()]
    context = error.ctx if isinstance(error, click.UsageError) else None
    usage = [context.get_usage(), f"Try '{context.command_path} --help' for help.", ""] if context else []
    return [*usage, f"error: {error.format_message()}"]


def _print_error(*lines: str) -> None:
    """Print lines on stderr; a closed or full stderr is ignored and does not change the exit code."""
    with contextlib.suppress(OSError):
        click.echo("\n".join(lines), err=True)


def _open_missing_streams() -> None:
    """Open closed standard streams on /dev/null, so that no file opened later gets the descriptor 0, 1 or 2."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _invoke(arguments: Sequence[str]) -> object:
    """Do what ``click.Group.main`` does except for its exit codes: it exits with 1 on a broken pipe."""
    instruction = os.environ.get(COMPLETION)
    if instruction:
        return shell_complete(cli, {}, PROGRAM, COMPLETION, instruction)
    with cli.make_context(PROGRAM, list(arguments)) as context:
        return cli.invoke(context)


if __name__ == "__main__":
    main()
