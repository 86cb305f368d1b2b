"""Displays of progress: a live table on a terminal, one line per change elsewhere, nothing when quiet."""

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import click

from governor.cli.output.progress import RevisionStatus, step_lines
from governor.values.printing import one_line

if TYPE_CHECKING:
    from rich.table import Table


class Display(Protocol):
    """A context manager that shows the progress of a revision."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, status: RevisionStatus) -> None:
        """Show one status."""


def open_display(*, quiet: bool) -> Display:
    """Return the display for the standard output of this process."""
    if quiet:
        return NoDisplay()
    return LiveDisplay() if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" else LineDisplay()


class NoDisplay:
    """A display that shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def show(self, status: RevisionStatus) -> None:
        """Show nothing."""


class LineDisplay(NoDisplay):
    """One line for each runtime that changed; readable in a log."""

    def __init__(self) -> None:
        self._last: RevisionStatus | None = None

    def show(self, status: RevisionStatus) -> None:
        """Print what changed since the last status."""
        for line in step_lines(self._last, status):
            click.echo(line)
        self._last = status


class LiveDisplay:
    """A table that is updated in place."""

    def __init__(self) -> None:
        # Imported only where it is needed, because it is slow to import.
        from rich.live import Live as RichLive  # noqa: PLC0415

        self._live = RichLive(auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def show(self, status: RevisionStatus) -> None:
        """Replace the table."""
        self._live.update(progress_table(status), refresh=True)


def progress_table(status: RevisionStatus) -> "Table":
    """Return a table of all runtimes of a revision; colour only repeats the state."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table("RUNTIME", "STATE", "SECONDS", "MESSAGE", box=None, pad_edge=False)
    for each in status.progress.runtimes:
        style = "green" if each.done else "yellow"
        state = Text(each.summary.state, style=style)
        table.add_row(each.runtime, state, f"{each.seconds:.2f}", Text(one_line(each.summary.message)))
    table.caption = status.counts_line or None
    return table
