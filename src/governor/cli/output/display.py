"""How progress looks: a live table on a terminal, one line per step elsewhere, nothing when quiet."""

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import click

from governor.cli.output.progress import Standing, step_lines
from governor.values.printing import one_line

if TYPE_CHECKING:
    from rich.table import Table


class Display(Protocol):
    """Shows the steps of a change while it is open."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, standing: Standing) -> None:
        """Show one step."""


def choose(*, quiet: bool) -> Display:
    """The display that fits to where the output goes."""
    if quiet:
        return Silent()
    return Live() if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" else Lines()


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def show(self, standing: Standing) -> None:
        """Show nothing."""


class Lines(Silent):
    """One line for each runtime that moved; readable in a log."""

    def __init__(self) -> None:
        self._last: Standing | None = None

    def show(self, standing: Standing) -> None:
        """Print what moved since the last step."""
        for line in step_lines(self._last, standing):
            click.echo(line)
        self._last = standing


class Live:
    """A table that follows the runtimes in place."""

    def __init__(self) -> None:
        # Only a terminal pays for rich.
        from rich.live import Live as RichLive  # noqa: PLC0415

        self._live = RichLive(auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def show(self, standing: Standing) -> None:
        """Replace the table."""
        self._live.update(progress_table(standing), refresh=True)


def progress_table(standing: Standing) -> "Table":
    """All runtimes of a change; states are words, colour only repeats them."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table("RUNTIME", "STATE", "SECONDS", "MESSAGE", box=None, pad_edge=False)
    for each in standing.progress.runtimes:
        style = "green" if each.done else "yellow"
        state = Text(each.summary.state, style=style)
        table.add_row(each.runtime, state, f"{each.seconds:.2f}", Text(one_line(each.summary.message)))
    return table
