"""When a change is rolled back, to what, and how that is shown. Pure."""

import msgspec

from governor.domain.conditions import Actor
from governor.reconciler.kinds.installation import OnFailure
from governor.reconciler.kinds.module_instance import (
    Applied,
    KnownGood,
    ModuleInstance,
    ModuleInstanceSpec,
    ModuleInstanceStatus,
    Rollback,
    RollbackCause,
)
from governor.reconciler.kinds.state import Problem
from governor.reconciler.states.conditions import shortened

KEPT = 2
"""Number of states that are kept: the present one, and the one to go back to."""


def active_rollback(instance: ModuleInstance) -> Rollback | None:
    """Return the rollback of the present generation, or None."""
    generation, known = instance.metadata.generation, instance.status.rollback
    if goal_of(instance) is None:
        return None
    if known is not None and known.generation == generation and known.cause is RollbackCause.POLICY:
        return known
    if instance.metadata.annotations.rollback == str(generation):
        return Rollback(generation, instance.spec.version, RollbackCause.REQUEST)
    return None


def goal_of(instance: ModuleInstance) -> KnownGood | None:
    """Return the state that a rollback goes to: the newest one in which the module was ready with another spec."""
    generation = instance.metadata.generation
    return next((each for each in instance.status.known_good if each.generation != generation), None)


def effective(instance: ModuleInstance, rollback: Rollback | None) -> ModuleInstance:
    """Return the instance as it is worked on: with the spec of the goal if it is rolled back."""
    goal = goal_of(instance) if rollback else None
    if goal is None:
        return instance
    spec = msgspec.structs.replace(
        instance.spec,
        version=goal.version,
        chart_digest=goal.chart_digest,
        namespace=goal.namespace,
        release_name=goal.release_name,
        values=goal.values,
        values_from=goal.values_from,
    )
    return msgspec.structs.replace(instance, spec=spec)


def with_known_good(status: ModuleInstanceStatus, spec: ModuleInstanceSpec, generation: int) -> ModuleInstanceStatus:
    """Return the status of a module that is ready, with its present state as the newest known one."""
    applied = status.last_applied
    if applied is None:
        return status
    present = KnownGood(
        generation,
        applied.version,
        applied.chart_digest,
        applied.values_digest,
        spec.namespace,
        spec.release_name,
        spec.values,
        spec.values_from,
    )
    others = [each for each in status.known_good if _reference(each) != _reference(applied)]
    return msgspec.structs.replace(status, known_good=(present, *others)[:KEPT])


def rollback_by_policy(instance: ModuleInstance, status: ModuleInstanceStatus) -> Rollback | None:
    """Return the rollback that the policy of a module demands after its failure was escalated, or None."""
    if instance.spec.on_failure is not OnFailure.ROLLBACK or goal_of(instance) is None:
        return None
    if status.failure is None or not status.failure.is_escalated or not _is_begun(status):
        return None
    generation, version = instance.metadata.generation, instance.spec.version
    return Rollback(generation, version, RollbackCause.POLICY, shortened(f"{status.reason}: {status.message}", 512))


def _is_begun(status: ModuleInstanceStatus) -> bool:
    """Return whether something else than what was ready last is applied, or being applied."""
    if status.attempt is not None:
        return True
    good = status.known_good[0] if status.known_good else None
    return good is not None and status.last_applied is not None and _reference(good) != _reference(status.last_applied)


def _reference(applied: Applied | KnownGood) -> tuple[str, str]:
    return applied.chart_digest, applied.values_digest


def rolled_back(instance: ModuleInstance, rollback: Rollback) -> Problem:
    """Return the problem of a module that was rolled back: what is wanted is not what is applied."""
    goal, failure = goal_of(instance), instance.status.failure
    version = goal.version if goal else ""
    earlier = version if version != rollback.version else "its earlier settings"
    if rollback.cause is RollbackCause.REQUEST:
        message = f"{rollback.version} was rolled back to {earlier} on request: change the spec, or remove the request"
        return Problem("RolledBack", message, Actor.USER)
    message = f"{rollback.version} failed and was rolled back to {earlier}; change the spec: {rollback.message}"
    return Problem("RolledBack", message, failure.type.actor if failure else Actor.USER)
