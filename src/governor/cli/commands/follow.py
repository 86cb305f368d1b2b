"""Waiting for a revision: the options, the watch that reconnects, and the printed result.

What a step means and how it looks are ``output.progress`` and ``output.display``.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from governor.cli.connection import call_server
from governor.cli.output.display import open_display
from governor.cli.output.progress import STILL_ACCEPTED, CommandResult, Phase, RevisionStatus, follow_result
from governor.cli.param_types import Duration
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import INTERRUPTED
from governor.process.flowcontrol.backoff import Backoff, Retries

if TYPE_CHECKING:
    from governor.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_RECONNECT: Final = Backoff(initial_s=0.2, max_s=2.0)


class WaitOptions(msgspec.Struct, frozen=True):
    """The options of every command that waits for runtimes."""

    wait: bool
    wait_timeout_s: int
    quiet: bool


def wait_options(function: F) -> F:
    """Add the options that make up ``WaitOptions``."""
    for option in _WAIT_OPTIONS:
        function = option(function)
    return function


_WAIT_OPTIONS: Final = (
    click.option("-q", "--quiet", is_flag=True, help="Print errors only."),
    click.option(
        "--wait-timeout",
        "wait_timeout_s",
        type=Duration(),
        default="60s",
        show_default=True,
        help="Maximum time to wait.",
    ),
    click.option("--wait/--no-wait", default=True, help="Wait until the change is verified (the default)."),
)


def follow(
    revision: int, options: WaitOptions, only: str | None = None, *, until_received: bool = False
) -> CommandResult:
    """Follow a revision until every runtime, or ``only`` one, has verified it, or received it, or cannot."""
    deadline = datetime.now(UTC) + timedelta(seconds=options.wait_timeout_s)
    with open_display(quiet=options.quiet) as display:
        follower = Follower(revision, display.show, only, deadline, until_received=until_received)
        try:
            call_server(lambda client: follower.follow(client, options.wait_timeout_s))
        except KeyboardInterrupt:
            return CommandResult(INTERRUPTED, f"interrupted: revision {revision} accepted", (STILL_ACCEPTED,))
        except GovernorError as error:
            raise GovernorError(error.kind, error.code, f"{error.message}; {STILL_ACCEPTED}", error.details) from error
    return follow_result(revision, follower.status, options.wait_timeout_s)


class Follower:
    """Follows one revision over as many connections as it takes; ``status`` is the last one received."""

    def __init__(
        self,
        revision: int,
        show: Callable[[RevisionStatus], None],
        only: str | None = None,
        deadline: datetime | None = None,
        *,
        until_received: bool = False,
    ) -> None:
        """Follow all runtimes of the revision, or ``only`` the one of this name."""
        self._revision = revision
        self._show = show
        self._only = only
        self._deadline = deadline
        self._until_received = until_received
        self._retries = Retries(_RECONNECT, random.Random())  # noqa: S311 - jitter, not a secret
        self.status: RevisionStatus | None = None

    async def follow(self, client: "Client", timeout_s: float) -> None:
        """Show each status until no runtime is pending or the timeout expires."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._is_pending():
                    await self._follow_once(client)
        except TimeoutError:
            return

    async def _follow_once(self, client: "Client") -> None:
        try:
            async with aclosing(client.progress(self._revision, self._only)) as steps:
                async for progress in steps:
                    self._update(RevisionStatus(progress, self._deadline, self._until_received))
                    if not self._is_pending():
                        return
        except GovernorError as error:
            if error.kind is not Kind.UNAVAILABLE:
                raise
            await asyncio.sleep(self._retries.next_delay_s())

    def _is_pending(self) -> bool:
        return self.status is None or self.status.count(Phase.PENDING) > 0

    def _update(self, status: RevisionStatus) -> None:
        self.status = status
        self._retries.reset()
        self._show(status)


def print_result(result: CommandResult, options: WaitOptions) -> int:
    """Print the result of a command and return its exit code."""
    if not options.quiet:
        print_lines([result.summary])
    warn(result.notes)
    return result.exit_code


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on the standard output."""
    for line in lines:
        click.echo(line)


def warn(lines: Iterable[str]) -> None:
    """Print lines on stderr."""
    for line in lines:
        click.echo(line, err=True)
