"""One line per module on a cluster, and the state of many of them."""

from collections.abc import Iterable, Sequence
from typing import Final

from governor.domain.conditions import Actor
from governor.kube.reflector import Entry, Unreadable
from governor.reconciler.kinds.module_instance import ModuleInstance
from governor.reconciler.kinds.state import ModuleCounts, ModuleLine, Problem, State
from governor.reconciler.resolution.placement import Placement
from governor.reconciler.states.conditions import shortened

SEVERITY: Final = (
    State.ERROR,
    State.WARNING,
    State.UNKNOWN,
    State.DELETING,
    State.PROCESSING,
    State.PENDING,
    State.READY,
)
"""States from the one that determines the state of the whole to the one that says least."""
_RANK: Final = {state: rank for rank, state in enumerate(SEVERITY)}


def line_of(placement: Placement | None, entry: Entry[ModuleInstance] | None) -> ModuleLine | None:
    """Return the line of a module from what is wanted and what exists; None if it is neither."""
    if placement is not None and isinstance(placement.outcome, Problem):
        return _problem_line(placement.module, placement.version, placement.outcome)
    if entry is None:
        return _line(placement.module, State.PENDING, placement.version, "NotCreated", "") if placement else None
    if isinstance(entry, Unreadable):
        problem = Problem("Unreadable", f"ModuleInstance {entry.metadata.name}: {entry.reason}", Actor.OPERATOR)
        return _problem_line(entry.metadata.name.partition(".")[0], "", problem)
    is_placed = placement is None or placement.outcome == entry.spec
    return _instance_line(entry, is_placed=is_placed)


def _instance_line(instance: ModuleInstance, *, is_placed: bool) -> ModuleLine:
    spec, status = instance.spec, instance.status
    if instance.metadata.deletion_timestamp:
        return _line(spec.module, State.DELETING, spec.version, "Deleting", status.message or "it is being removed")
    if spec.hold is not None:
        return _problem_line(spec.module, spec.version, spec.hold)
    if not is_placed or status.state is None or status.observed_generation != instance.metadata.generation:
        state = State.PENDING if status.state is None else State.PROCESSING
        return _line(spec.module, state, spec.version, "Outdated", "the last change has not been observed yet")
    return ModuleLine(spec.module, status.state, spec.version, status.reason, shortened(status.message), status.actor)


def _problem_line(module: str, version: str, problem: Problem) -> ModuleLine:
    return ModuleLine(module, problem.state, version, problem.reason, shortened(problem.message), problem.actor)


def _line(module: str, state: State, version: str, reason: str, message: str) -> ModuleLine:
    return ModuleLine(module, state, version, reason, shortened(message))


def by_severity(lines: Iterable[ModuleLine]) -> list[ModuleLine]:
    """Return the lines with those that need an action first."""
    return sorted(lines, key=lambda each: (_RANK[each.state], each.module))


def overall(lines: Sequence[ModuleLine]) -> State:
    """Return the state of all lines together; a module that is removed means that work is under way."""
    worst = min((each.state for each in lines), key=_RANK.__getitem__, default=State.READY)
    return State.PROCESSING if worst is State.DELETING else worst


def counts_of(lines: Sequence[ModuleLine]) -> ModuleCounts:
    """Return the number of lines in each state."""
    states = [each.state for each in lines]
    progressing = sum(states.count(each) for each in (State.PENDING, State.PROCESSING, State.DELETING))
    return ModuleCounts(
        total=len(states),
        ready=states.count(State.READY),
        progressing=progressing,
        warning=states.count(State.WARNING),
        error=states.count(State.ERROR),
        unknown=states.count(State.UNKNOWN),
    )
