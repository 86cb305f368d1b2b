"""The status of a ModuleInstance from the result of its steps."""

import msgspec

from governor.domain.conditions import Actor
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceStatus
from governor.reconciler.kinds.state import RESOLVED, Problem, State
from governor.reconciler.states.conditions import met, published, shortened, unmet
from governor.reconciler.steps.step import Halt, Paused, Work


def instance_status(instance: ModuleInstance, result: Work | Halt) -> ModuleInstanceStatus:
    """Return the status of a ModuleInstance; what was applied before stays in it."""
    before = instance.status
    match result:
        case Problem():
            condition = unmet(RESOLVED, result.reason, result.message)
            state, reason, message, actor = result.state, result.reason, result.message, result.actor
        case Paused():
            condition = met(RESOLVED, "Paused", "the Cluster is paused: nothing is applied, repaired or removed")
            state, reason, message, actor = before.state or State.PENDING, "Paused", condition.message, Actor.NOBODY
        case Work():
            condition = met(RESOLVED, RESOLVED, "the Module, its Cluster and all values exist")
            state, reason, message, actor = State.PENDING, RESOLVED, "it is not applied yet", Actor.NOBODY
    return msgspec.structs.replace(
        before,
        conditions=(published(condition),),
        state=state,
        reason=reason,
        message=shortened(message, 1024),
        actor=actor,
    )
