"""When a failure begins, is escalated, and ends. Pure; the current time is a parameter.

A failure lasts until its object is ready. Another spec or other values start its time again. One that was escalated is
kept until all sinks know that it has ended.
"""

import datetime
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.kube.controller.conditions import FALSE, Condition, format_time
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.failure import ESCALATED, PENDING_TIMEOUT_S, Failure, FailureType, OnTimeout
from governor.reconciler.kinds.module_instance import ModuleInstanceStatus
from governor.reconciler.kinds.state import READY, Problem
from governor.reconciler.states.conditions import met, published, shortened

RECOVERED: Final = "Recovered"
"""Reason of the Event for an escalated failure that has ended."""
_MAX_MESSAGE: Final = 1024


class Policy(msgspec.Struct, frozen=True):
    """How failures on one cluster are treated."""

    timeout_s: float = PENDING_TIMEOUT_S
    on_timeout: OnTimeout = OnTimeout.ESCALATE
    sinks: frozenset[str] = frozenset()
    """Names of the sinks to notify."""


def policy_of(cluster: Cluster | None) -> Policy:
    """Return the policy of a Cluster; the default if it does not exist or cannot be read."""
    if cluster is None:
        return Policy()
    spec = cluster.spec
    return Policy(spec.pending_timeout, spec.on_timeout, frozenset(each.name for each in spec.sinks))


class Seen(msgspec.Struct, frozen=True):
    """What one run has found out about the failure of an object."""

    type: FailureType | None
    """The type of the failure; None if nothing fails."""
    run: str
    since: str
    """Since when the object is not ready."""
    reference: str = ""
    is_pending: bool = False
    """Whether it counts as a failure to be in this state for too long."""
    is_ready: bool = False
    notified: frozenset[str] = frozenset()
    """Sinks that have received the notification that is due."""


def next_failure(before: Failure | None, seen: Seen, policy: Policy, now: datetime.datetime) -> Failure | None:
    """Return the failure after a run, or None if there is none."""
    if before is not None and seen.notified - set(before.notified):
        before = msgspec.structs.replace(before, notified=tuple(sorted({*before.notified, *seen.notified})))
    if seen.is_ready:
        return _ended(before, policy, now)
    failure = _present(before, seen, policy, now)
    if failure is None or failure.is_escalated or policy.on_timeout is OnTimeout.RETRY:
        return failure
    if not is_due(failure.since, policy, now):
        return failure
    return msgspec.structs.replace(failure, escalated=format_time(now), notified=())


def _present(before: Failure | None, seen: Seen, policy: Policy, now: datetime.datetime) -> Failure | None:
    found = seen.type or (before.type if before else None)
    if found is None and seen.is_pending and is_due(seen.since, policy, now):
        found = FailureType.TRANSIENT
    if found is None:
        return None
    if before is None:
        return Failure(found, seen.since, seen.run, seen.reference)
    if before.reference != seen.reference:
        return Failure(found, format_time(now), before.run, seen.reference, reported=before.is_open)
    if before.resolved is not None:  # it has not really ended
        before = msgspec.structs.replace(before, resolved=None, notified=())
    return msgspec.structs.replace(before, type=found)


def _ended(before: Failure | None, policy: Policy, now: datetime.datetime) -> Failure | None:
    if before is None:
        return None
    if before.resolved is None:
        if not before.is_open:
            return None
        before = msgspec.structs.replace(before, resolved=format_time(now), notified=())
    return None if policy.sinks <= set(before.notified) else before


def is_due(since: str, policy: Policy, now: datetime.datetime) -> bool:
    """Return whether a failure that began at a stored time has lasted too long."""
    return due_in_s(since, policy, now) <= 0


def due_in_s(since: str, policy: Policy, now: datetime.datetime) -> float:
    """Return how long a failure may still last."""
    return policy.timeout_s - (now - datetime.datetime.fromisoformat(since)).total_seconds()


def unready_since(status: ModuleInstanceStatus, generation: int, now: datetime.datetime) -> str:
    """Return since when an object of this generation is not ready."""
    ready = next((each for each in status.conditions if each.type == READY and each.status == FALSE), None)
    is_same = ready is not None and status.observed_generation == generation
    return ready.last_transition_time if ready and is_same else format_time(now)


def escalated_status(status: ModuleInstanceStatus, failure: Failure | None, policy: Policy) -> ModuleInstanceStatus:
    """Return the status of a module with its failure; an escalated one always names who must act."""
    status = msgspec.structs.replace(status, failure=failure)
    if failure is None or not failure.is_escalated:
        return status
    message = status.message
    if status.actor is Actor.NOBODY:
        message = shortened(f"not ready for {policy.timeout_s:g} s: {message}", _MAX_MESSAGE)
    actor = failure.type.actor if status.actor is Actor.NOBODY else status.actor
    return msgspec.structs.replace(
        status,
        message=message,
        actor=actor,
        state=Problem(status.reason, message, actor).state,
        conditions=(*status.conditions, escalated_condition(failure, message, actor)),
    )


def escalation_event(before: Failure | None, after: Failure | None) -> str:
    """Return the reason of the Event for a change of a failure, or ``""``."""
    if after is not None and after.is_escalated and (before is None or before.escalated != after.escalated):
        return ESCALATED
    was, is_now = (each is not None and each.is_open for each in (before, after))
    return RECOVERED if was and not is_now else ""


def escalated_condition(failure: Failure, message: str, actor: Actor) -> Condition:
    """Return the condition of an escalated failure."""
    return published(met(ESCALATED, failure.type, f"the {actor} must act: {message}"))
