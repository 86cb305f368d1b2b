"""Click groups: one imports its commands on use, so that help and typos are fast; one accepts singular and plural."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """A command's location, as ``module:attribute``, and its line in the group's help."""

    target: str
    short_help: str


class LazyGroup(click.Group):
    """A group of commands that are not imported yet."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were given."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - a wrong entry is a bug of ours
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise a usage error that suggests the closest name."""
        close = difflib.get_close_matches(args[0], self.entries, n=1)
        if args[0] not in self.entries and close and not args[0].startswith("-"):
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {close[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in self.entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names without importing the commands."""
        matching = (name for name in self.entries if name.startswith(incomplete))
        names = [CompletionItem(name, help=self.entries[name].short_help) for name in matching]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


class NounGroup(click.Group):
    """A group whose commands are plural nouns; the singular is accepted too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a noun by its plural or its singular."""
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, f"{cmd_name.removesuffix('s')}s")
