"""``tap``: a call as a line for people. Pure."""

from collections.abc import Iterator
from typing import Final

from governor.runtimeproxy.hooks.changes import in_words
from governor.runtimeproxy.ops.control import SeenCall, Subject, Trail
from governor.values.printing import one_line, printable

_MOST_CHANGES: Final = 8


def line_of(call: SeenCall) -> str:
    """One call: when, how long, how it ended, what it was about, and what plugins made of it."""
    took = f"{call.seconds * 1000:.1f}ms" if call.seconds is not None else "?"
    ending = call.status if call.outcome == "completed" else f"{call.outcome} {call.status}".strip()
    time = f"{call.time:%H:%M:%S}.{call.time.microsecond // 1000:03}Z"
    columns = f"{time}  {took:>9}  {ending or '-':<16}  {call.method:<24}"
    more = [
        _subject(call.subject),
        "held" if call.held else "",
        *(_trail(call.trail) if call.trail is not None else ()),
    ]
    return "  ".join([printable(columns), *(one_line(each) for each in more if each)]).rstrip()


def _subject(subject: Subject) -> str:
    pod = f"{subject.namespace}/{subject.pod}" if subject.pod else subject.sandbox_id[:13]
    return " ".join(part for part in (pod, subject.container or subject.container_id[:13]) if part)


def _trail(trail: Trail) -> Iterator[str]:
    for asked in trail.asked:
        failed = f" failed: {asked.error}" if asked.error else ""
        yield f"[{asked.plugin} {asked.hook} {asked.seconds * 1000:.1f}ms{failed}]"
    for change in trail.changes[:_MOST_CHANGES]:
        yield f"{change.plugin}: {change.field} {in_words(change.old)} -> {in_words(change.new)}"
    if left_out := trail.left_out + len(trail.changes[_MOST_CHANGES:]):
        yield f"and {left_out} more changes"
    yield from (f"conflict: {each}" for each in trail.conflicts)
    yield from (f"no place for: {each}" for each in trail.unused)
    if trail.unasked:
        yield f"nobody could be asked: {trail.unasked}"
    if trail.refusal:
        yield f"refused: {trail.refusal}"
