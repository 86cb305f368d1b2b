"""One verdict on many objects: the worst state, and those that are not ready by name."""

from collections.abc import Mapping
from typing import Final

from governor.kube.objects import ObjectRef
from governor.kube.readiness.verdict import Readiness, State, ready

_WORST_FIRST: Final = {state: place for place, state in enumerate(State)}
_MOST_OF_ONE: Final = 240
_MORE: Final = "; and {} more"


def summarise(verdicts: Mapping[ObjectRef, Readiness], *, most_characters: int = 1024) -> Readiness:
    """The state and reason of the worst, and a message that names as many as fit, the worst first."""
    lacking = sorted(
        ((ref, verdict) for ref, verdict in verdicts.items() if verdict.state is not State.READY),
        key=lambda pair: (_WORST_FIRST[pair[1].state], pair[0]),
    )
    if not lacking:
        return ready("AllReady", f"all {len(verdicts)} ready") if verdicts else ready("Empty", "there is nothing")
    worst = lacking[0][1]
    count = f"{len(lacking)} of {len(verdicts)} not ready: "
    lines = [_line(ref, verdict) for ref, verdict in lacking]
    return Readiness(worst.state, worst.reason, count + _fitting(lines, most_characters - len(count)))


def _line(ref: ObjectRef, verdict: Readiness) -> str:
    what = f"{ref} {verdict.state}, {verdict.reason}"
    return _cut(f"{what}: {verdict.message}" if verdict.message else what, _MOST_OF_ONE)


def _fitting(lines: list[str], most: int) -> str:
    """As many lines as fit, and how many did not."""
    text = _cut(lines[0], most - len(_MORE) - 4)
    for number, line in enumerate(lines[1:], start=1):
        more = _MORE.format(len(lines) - number)
        if len(text) + len(line) + 2 + len(more) > most:
            return text + more
        text += f"; {line}"
    return text


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"
