"""A group that knows its commands by name and imports one only when it is called, so that help and typos are quick."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """Where a command lives, as ``module:attribute``, and its line in the group's help."""

    target: str
    short_help: str


class LazyGroup(click.Group):
    """A group of commands that are not imported yet."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which they were given."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - a wrong entry is our own mistake
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the one that was probably meant."""
        close = difflib.get_close_matches(args[0], self.entries, n=1)
        if args[0] not in self.entries and close and not args[0].startswith("-"):
            raise click.UsageError(f"no such command {args[0]!r}; did you mean {close[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in self.entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the names without importing the commands."""
        fitting = (name for name in self.entries if name.startswith(incomplete))
        names = [CompletionItem(name, help=self.entries[name].short_help) for name in fitting]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
