"""Following what was asked for until it is in use, and saying how it ended; for every command that waits."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click
import msgspec

from governor.cli.connection import ask
from governor.cli.output.display import choose
from governor.cli.output.progress import STAYS, Ending, Follower, ending
from governor.cli.parameters import Duration
from governor.errors import GovernorError
from governor.process.exit_codes import INTERRUPTED

F = TypeVar("F", bound=Callable[..., Any])


class Patience(msgspec.Struct, frozen=True):
    """Whether and how long a person waits, and how much they want to read meanwhile."""

    wait: bool
    wait_timeout_s: int
    quiet: bool


def patience_options(function: F) -> F:
    """The options that together are a ``Patience``."""
    for option in _PATIENCE_OPTIONS:
        function = option(function)
    return function


_PATIENCE_OPTIONS: Final = (
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors."),
    click.option(
        "--wait-timeout", "wait_timeout_s", type=Duration(), default="60s", show_default=True, help="How long to wait."
    ),
    click.option("--wait/--no-wait", default=True, help="Wait until the change is verified in use (the default)."),
)


def follow(revision: int, patience: Patience, only: str | None = None) -> Ending:
    """Follow a revision on all its runtimes, or on one, until it is in use there or cannot be."""
    with choose(quiet=patience.quiet) as display:
        follower = Follower(revision, display.show, only)
        try:
            ask(lambda client: follower.follow(client, patience.wait_timeout_s))
        except KeyboardInterrupt:
            return Ending(INTERRUPTED, f"interrupted: revision {revision} accepted", (STAYS,))
        except GovernorError as error:
            raise GovernorError(error.kind, error.code, f"{error.message}; {STAYS}", error.details) from error
    return ending(revision, follower.last, patience.wait_timeout_s)


def end(ending: Ending, patience: Patience) -> int:
    """Say how it ended; the exit code."""
    if not patience.quiet:
        say([ending.result])
    warn(ending.remarks)
    return ending.code


def say(lines: Iterable[str]) -> None:
    """Lines of the answer."""
    for line in lines:
        click.echo(line)


def warn(lines: Iterable[str]) -> None:
    """Lines beside the answer."""
    for line in lines:
        click.echo(line, err=True)
