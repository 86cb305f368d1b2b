"""Progress of an accepted revision over its runtimes, and the result of waiting for it. Pure.

An accepted change stays accepted even if waiting for it fails. The watch is ``commands.follow``, the terminal
``output.display``.
"""

import enum
from datetime import datetime
from typing import Final

import msgspec

from governor.domain.conditions import PENDING, STALLED_REASONS, WAITING_REASONS
from governor.errors import Kind
from governor.process.exit_codes import EXIT_CODE, NEGATIVE, SUCCESS
from governor.values.printing import one_line
from governor.wire.rest import ProgressCount, RevisionProgress, RuntimeProgress

WITHOUT_AGENT_REASONS: Final = frozenset({"NotEnrolled", "Revoked"})
"""Reasons of the condition ``Connected`` of a runtime for which no agent can report."""
STILL_ACCEPTED: Final = "the change stays accepted and continues in the background; check `governor get runtimes`"

_APPLIED_LATER: Final = (
    "the change stays accepted and is applied when the maintenance window begins or the hold ends; "
    "check `governor get runtimes`"
)


class Phase(enum.Enum):
    """How far a runtime is with a revision; one without an agent cannot be waited for.

    ``WAITING``: it waits itself, for a maintenance window or the end of a hold, and for longer than the command does.
    """

    VERIFIED = enum.auto()
    STALLED = enum.auto()
    WAITING = enum.auto()
    WITHOUT_AGENT = enum.auto()
    PENDING = enum.auto()


class RevisionStatus(msgspec.Struct, frozen=True):
    """Progress of one revision, and until when the command waits at most.

    With ``until_received`` a runtime is done as soon as its agent has reported anything.
    """

    progress: RevisionProgress
    deadline: datetime | None = None
    until_received: bool = False

    @property
    def total(self) -> int:
        """Return the number of runtimes of the revision."""
        return sum(each.count for each in self._counts)

    def count(self, phase: Phase) -> int:
        """Return how many runtimes are in a phase."""
        return sum(each.count for each in self._counts if self._phase(each) is phase)

    @property
    def counts_line(self) -> str:
        """Return the number of runtimes in each state on one line, if not all runtimes are listed."""
        if self.total == len(self.progress.runtimes):
            return ""
        states: dict[str, int] = {}
        for each in self._counts:
            states[each.state] = states.get(each.state, 0) + each.count
        return f"{self.total:,} runtimes: " + ", ".join(f"{count:,} {state}" for state, count in states.items())

    @property
    def _counts(self) -> tuple[ProgressCount, ...]:
        return self.progress.counts or tuple(map(_counted, self.progress.runtimes))

    def in_phase(self, phase: Phase) -> list[RuntimeProgress]:
        """Return the listed runtimes in a phase."""
        return [each for each in self.progress.runtimes if self._phase(_counted(each)) is phase]

    def _phase(self, counted: ProgressCount) -> Phase:
        if counted.done or (self.until_received and counted.state != PENDING):
            return Phase.VERIFIED
        if counted.state in STALLED_REASONS:
            return Phase.STALLED
        if counted.state in WAITING_REASONS and self._is_beyond(counted.until):
            return Phase.WAITING
        return Phase.PENDING if counted.has_agent else Phase.WITHOUT_AGENT

    def _is_beyond(self, until: datetime | None) -> bool:
        return until is None or self.deadline is None or until > self.deadline


def _counted(runtime: RuntimeProgress) -> ProgressCount:
    summary = runtime.summary
    has_agent = summary.reason not in WITHOUT_AGENT_REASONS
    return ProgressCount(summary.state, runtime.done, 1, has_agent, summary.until)


class CommandResult(msgspec.Struct, frozen=True):
    """What a command prints when it ends: a summary line, and notes for stderr."""

    exit_code: int
    summary: str
    notes: tuple[str, ...] = ()


def step_lines(old: RevisionStatus | None, new: RevisionStatus) -> list[str]:
    """Return one line for each runtime whose summary changed, or the counts if there are many runtimes."""
    if new.counts_line:
        return [] if old and old.counts_line == new.counts_line else [new.counts_line]
    before = {each.runtime: each.summary for each in old.progress.runtimes} if old else {}
    changed = (each for each in new.progress.runtimes if before.get(each.runtime) != each.summary)
    return [f"{runtime_line(each)} ({each.seconds:.2f} s)" for each in changed]


def runtime_line(runtime: RuntimeProgress) -> str:
    """Return a runtime's state and message on one line."""
    return f"{runtime.runtime}: {runtime.summary.state}: {one_line(runtime.summary.message)}"


def follow_result(revision: int, status: RevisionStatus | None, timeout_s: float) -> CommandResult:
    """Return the result of waiting for a revision, from the last status received."""
    if status is None:
        summary = f"revision {revision} accepted, but its progress was unavailable for {timeout_s:g} s"
        return CommandResult(EXIT_CODE[Kind.UNAVAILABLE], summary, (STILL_ACCEPTED,))
    if not status.total:
        return CommandResult(SUCCESS, f"revision {revision} accepted; it changes no runtime")
    stalled, pending, waiting = (status.in_phase(each) for each in (Phase.STALLED, Phase.PENDING, Phase.WAITING))
    summary = f"revision {revision} verified on {status.count(Phase.VERIFIED)}/{status.total} runtimes"
    if stalled:
        name = stalled[0].runtime
        advice = (
            f"the change stays accepted; see `governor describe runtime {name}`, then correct the change, "
            f"or retry it with `governor runtime retry {name}`"
        )
        return CommandResult(NEGATIVE, summary, (*map(runtime_line, (*stalled, *waiting, *pending)), advice))
    if waiting:
        notes = (*map(runtime_line, (*waiting, *pending)), _APPLIED_LATER)
        return CommandResult(EXIT_CODE[Kind.DEADLINE], f"{summary}, {status.count(Phase.WAITING)} waiting", notes)
    if pending:
        notes = (*map(runtime_line, pending), STILL_ACCEPTED)
        return CommandResult(EXIT_CODE[Kind.DEADLINE], f"{summary} after {timeout_s:g} s", notes)
    seconds = [each.seconds for each in status.in_phase(Phase.VERIFIED)]
    took = f" in {max(*seconds, status.progress.seconds):.2f} s" if seconds else ""
    return CommandResult(SUCCESS, summary + took, tuple(map(_join_hint, status.in_phase(Phase.WITHOUT_AGENT))))


def _join_hint(runtime: RuntimeProgress) -> str:
    name = runtime.runtime
    return f"{name}: no agent is enrolled; create a join token with `governor token join {name}`"
