"""``tap``, the command's side: prints each call as a line. The proxy's side is ``tap``."""

import contextlib
from collections.abc import Iterator
from typing import Final

import click

from governor.runtimeproxy.hooks.changes import display
from governor.runtimeproxy.ops.control import Subject, TapCall, TapDropped, TapLine, TapOpened, Trail
from governor.values.printing import json_line, one_line, printable

_MAX_CHANGES: Final = 8


def follow(lines: Iterator[TapLine], count: int | None, *, in_json: bool) -> None:
    """Print calls until ``count`` is reached or Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        for line in lines:
            if in_json:
                click.echo(json_line(line))
            elif isinstance(line, TapCall):
                click.echo(call_text(line))
            else:
                click.echo(_notice(line), err=True)
            if count is not None and isinstance(line, TapCall):
                count -= 1
                if not count:
                    return


def call_text(call: TapCall) -> str:
    """Return a call as one line: time, duration, status, method, subject, and the plugins' part in it."""
    duration = f"{call.seconds * 1000:.1f}ms" if call.seconds is not None else "?"
    status = call.status if call.outcome == "completed" else f"{call.outcome} {call.status}".strip()
    time = f"{call.time:%H:%M:%S}.{call.time.microsecond // 1000:03}Z"
    columns = f"{time}  {duration:>9}  {status or '-':<16}  {call.method:<24}"
    more = [
        _subject(call.subject),
        "held" if call.held else "",
        *(_trail(call.trail) if call.trail is not None else ()),
    ]
    return "  ".join([printable(columns), *(one_line(each) for each in more if each)]).rstrip()


def _notice(line: TapOpened | TapDropped) -> str:
    if isinstance(line, TapOpened):
        return f"watching; copied connections asked to reconnect: {line.retired}"
    return f"{line.count} calls dropped: they were not read fast enough"


def _subject(subject: Subject) -> str:
    pod = f"{subject.namespace}/{subject.pod}" if subject.pod else subject.sandbox_id[:13]
    return " ".join(part for part in (pod, subject.container or subject.container_id[:13]) if part)


def _trail(trail: Trail) -> Iterator[str]:
    for each in trail.asked:
        failed = f" failed: {each.error}" if each.error else ""
        yield f"[{each.plugin} {each.hook} {each.seconds * 1000:.1f}ms{failed}]"
    for change in trail.changes[:_MAX_CHANGES]:
        yield f"{change.plugin}: {change.field} {display(change.old)} -> {display(change.new)}"
    if left_out := trail.left_out + len(trail.changes[_MAX_CHANGES:]):
        yield f"and {left_out} more changes"
    yield from (f"conflict: {each}" for each in trail.conflicts)
    yield from (f"not applicable: {each}" for each in trail.unused)
    if trail.unasked:
        yield f"no plugin could be called: {trail.unasked}"
    if trail.refusal:
        yield f"rejected: {trail.refusal}"
