"""``tap``: a call as a line for people. Pure."""

from collections.abc import Iterator

from governor.runtimeproxy.control import SeenCall, Subject, Trail
from governor.values.printing import one_line


def line_of(call: SeenCall) -> str:
    """One call: when, how long, how it ended, what it was about, and what plugins made of it."""
    took = f"{call.seconds * 1000:.1f}ms" if call.seconds is not None else "?"
    ending = call.status if call.outcome == "completed" else f"{call.outcome} {call.status}".strip()
    columns = (
        f"{call.time:%H:%M:%S}.{call.time.microsecond // 1000:03}  {took:>9}  {ending or '-':<16}  {call.method:<24}"
    )
    more = [
        _subject(call.subject),
        "held" if call.held else "",
        *(_trail(call.trail) if call.trail is not None else ()),
    ]
    return "  ".join([_visible(columns), *(one_line(each) for each in more if each)]).rstrip()


def _visible(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _subject(subject: Subject) -> str:
    pod = f"{subject.namespace}/{subject.pod}" if subject.pod else subject.sandbox_id[:13]
    return " ".join(part for part in (pod, subject.container or subject.container_id[:13]) if part)


def _trail(trail: Trail) -> Iterator[str]:
    for asked in trail.asked:
        failed = f" failed: {asked.error}" if asked.error else ""
        yield f"[{asked.plugin} {asked.hook} {asked.seconds * 1000:.1f}ms{failed}]"
    for change in trail.changes:
        yield f"{change.plugin}: {change.field} {_value(change.old)} -> {_value(change.new)}"
    if trail.left_out:
        yield f"and {trail.left_out} more changes"
    yield from (f"conflict: {each}" for each in trail.conflicts)
    if trail.unasked:
        yield f"nobody could be asked: {trail.unasked}"
    if trail.refusal:
        yield f"refused: {trail.refusal}"


def _value(value: int | str | None) -> str:
    return "(none)" if value is None else str(value) or '""'
