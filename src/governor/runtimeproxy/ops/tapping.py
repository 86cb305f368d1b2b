"""``tap``: prints the lines of a live view until it ends or is interrupted."""

import contextlib
from collections.abc import Iterator

import click

from governor.runtimeproxy.ops.control import Line, LostCalls, SeenCall, TapOpened
from governor.runtimeproxy.ops.tap_text import line_of
from governor.values.printing import json_line


def follow(lines: Iterator[Line], count: int | None, *, in_json: bool) -> None:
    """Print calls, so many if a count is given; Ctrl-C is a usual end."""
    with contextlib.suppress(KeyboardInterrupt):
        for line in lines:
            if in_json:
                click.echo(json_line(line))
            elif isinstance(line, SeenCall):
                click.echo(line_of(line))
            else:
                click.echo(_remark(line), err=True)
            if count is not None and isinstance(line, SeenCall):
                count -= 1
                if not count:
                    return


def _remark(line: TapOpened | LostCalls) -> str:
    if isinstance(line, TapOpened):
        return f"watching; connections that were copied and come again now: {line.retired}"
    return f"{line.count} calls are not shown: they came faster than they were read"
