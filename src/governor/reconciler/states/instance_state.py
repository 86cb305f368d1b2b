"""The status of a ModuleInstance from the result of its steps."""

from collections.abc import Iterator
from typing import Final

import msgspec

from governor.domain.conditions import Actor, Condition
from governor.reconciler.kinds.module_instance import ModuleInstanceStatus
from governor.reconciler.kinds.state import DEPLOYED, HEALTHY, READY, RESOLVED, Problem, State
from governor.reconciler.states.conditions import met, published, shortened, unmet
from governor.reconciler.steps.step import Halted, Paused, Work

_STAGES: Final = (RESOLVED, DEPLOYED, HEALTHY)
_MESSAGES: Final = {
    RESOLVED: "the Module, its Cluster and all values exist",
    DEPLOYED: "the desired version and values are applied",
    HEALTHY: "all objects are ready",
}


def instance_status(before: ModuleInstanceStatus, result: Work | Halted | Paused) -> ModuleInstanceStatus:
    """Return the status of a ModuleInstance; what was applied before stays in it."""
    match result:
        case Work(status=status):
            conditions = [met(stage, stage, _MESSAGES[stage]) for stage in _STAGES]
            ready = Problem(READY, f"{status.objects} objects are ready", Actor.NOBODY)
            return _status(status, conditions, ready, State.READY)
        case Paused(problem=problem):
            condition = met(RESOLVED, problem.reason, problem.message)
            return _status(before, [condition], problem, before.state or State.PENDING)
        case Halted(problem=problem, stage=stage, work=work):
            status = work.status if work else before
            return _status(status, list(_until(stage, problem)), problem, problem.state)


def _until(stage: str, problem: Problem) -> Iterator[Condition]:
    """Yield the conditions up to the one that does not hold; nothing is known of those after it."""
    for each in _STAGES:
        if each == stage:
            yield unmet(each, problem.reason, problem.message)
            return
        yield met(each, each, _MESSAGES[each])


def rolled_back_status(status: ModuleInstanceStatus, problem: Problem) -> ModuleInstanceStatus:
    """Return the status of a module that was rolled back: its objects are ready, but not of the desired version."""
    conditions = [*_until(DEPLOYED, problem), met(HEALTHY, HEALTHY, _MESSAGES[HEALTHY])]
    return _status(status, conditions, problem, problem.state)


def processing_status(status: ModuleInstanceStatus) -> ModuleInstanceStatus:
    """Return the status in the middle of a change."""
    attempt = status.attempt
    text = f"{attempt.operation} of version {attempt.version} is under way" if attempt else "it is being changed"
    problem = Problem("Applying", text, Actor.NOBODY)
    return _status(status, list(_until(DEPLOYED, problem)), problem, State.PROCESSING)


def deleting_status(before: ModuleInstanceStatus, problem: Problem) -> ModuleInstanceStatus:
    """Return the status of a ModuleInstance that is being removed, and what it waits for."""
    condition = unmet(DEPLOYED, problem.reason, problem.message)
    state = State.DELETING if problem.actor is Actor.NOBODY else problem.state
    return _status(before, [condition], problem, state)


def _status(
    status: ModuleInstanceStatus, conditions: list[Condition], problem: Problem, state: State
) -> ModuleInstanceStatus:
    ready = (
        met(READY, state, problem.message) if state is State.READY else unmet(READY, problem.reason, problem.message)
    )
    return msgspec.structs.replace(
        status,
        conditions=tuple(published(each) for each in (*conditions, ready)),
        state=state,
        reason=problem.reason,
        message=shortened(problem.message, 1024),
        actor=problem.actor,
    )
