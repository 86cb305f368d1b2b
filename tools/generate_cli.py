"""Derives the reference of the command line from the commands, and that of the exit codes from their table."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from governor.cli.main import PROGRAM, cli
from governor.errors import Kind
from governor.process.exit_codes import BROKEN_PIPE, DONE, EXIT_CODE, INTERRUPTED, NO, USAGE

_MEANING: Final = {
    Kind.INVALID: "The input is wrong in itself: not YAML, an unknown kind, a wrong value. Correct it.",
    Kind.NOT_FOUND: "What was named is not there.",
    Kind.EXISTS: "It is there already.",
    Kind.CONFLICT: "It contradicts something else: profiles of equal priority, or somebody else's newer change.",
    Kind.PRECONDITION: "Something must be done first, for example `--allow-deletions`; the message says what.",
    Kind.UNAUTHENTICATED: "No token, a wrong one, or an expired or revoked one; or not the right server.",
    Kind.DENIED: "The token is valid and does not allow this.",
    Kind.EXHAUSTED: "A limit or a disk is full.",
    Kind.UNAVAILABLE: "The server cannot be reached or cannot work now. Try again.",
    Kind.DEADLINE: "It took too long. A change that was accepted stays accepted.",
    Kind.UNIMPLEMENTED: "This version cannot do that.",
    Kind.INTERNAL: "A defect, or an answer that is not one of a Runtime Governor server.",
}
_NOTE: Final = "<!-- Derived by `make generate`; change the program instead. -->"


def outputs() -> dict[Path, str]:
    """Both files, under their paths in the repository."""
    return {
        Path("docs/reference/cli.md"): _text(_commands()),
        Path("docs/reference/exit-codes.md"): _text(_exit_codes()),
    }


def _text(blocks: Iterator[str]) -> str:
    text = "\n\n".join(blocks)
    # Defaults may lie in the home directory of whoever derives this.
    return text.replace(str(Path.home()), "~") + "\n"


def _commands() -> Iterator[str]:
    yield "# The command line"
    yield _NOTE
    with click.Context(cli, info_name=PROGRAM, help_option_names=[]) as context:
        yield from _command(context)


def _command(context: click.Context) -> Iterator[str]:
    command = context.command
    yield f"## {context.command_path}"
    yield from _paragraphs(inspect.cleandoc(command.help or ""))
    yield f"```\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
    records = [each.get_help_record(context) or ("", "") for each in command.get_params(context)]
    told = [f"- `{names}`: {' '.join(text.split())}" for names, text in records if text]
    if told:
        yield "\n".join(told)
    if isinstance(command, click.Group):
        yield from _members(command, context)


def _members(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        member = group.get_command(context, name)
        assert member is not None
        with click.Context(member, context, info_name=name, help_option_names=[]) as inner:
            yield from _command(inner)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b"):
            block = paragraph.removeprefix("\b").strip("\n")
            yield f"```\n{block}\n```"
        elif paragraph:
            yield " ".join(paragraph.split())


def _exit_codes() -> Iterator[str]:
    yield "# Exit codes of `governor`"
    yield _NOTE
    yield "Scripts may rely on these numbers. No error ever ends with 1, so `diff` can be used in conditions."
    rows = [
        (DONE, "done", "It is done. For `apply`: every runtime with an agent has verified the change."),
        (
            NO,
            "no",
            "The answer is no: `diff`, `doctor` or `lint` found something; a runtime failed or proved nothing.",
        ),
        (USAGE, "usage", "The command line is wrong; nothing was tried."),
        *((code, str(kind), _MEANING[kind]) for kind, code in EXIT_CODE.items()),
        (INTERRUPTED, "interrupted", "Ctrl-C. A change that was accepted stays accepted."),
        (BROKEN_PIPE, "pipe", "Whoever read the output has gone."),
    ]
    lines = [f"| {code} | {name} | {meaning} |" for code, name, meaning in rows]
    yield "\n".join(["| code | name | meaning |", "|---|---|---|", *lines])
