"""What a run has found out about a failure, and when a module that fails is reconciled again."""

import datetime
import random
from typing import Final

from governor.process.reconcile.reconciler import Done, Outcome, Stalled, Waiting
from governor.process.telemetry.logging import correlation_id
from governor.reconciler.kinds.failure import Failure, FailureType, OnTimeout
from governor.reconciler.kinds.state import HEALTHY
from governor.reconciler.states.escalation import Policy, Seen, due_in_s, unready_since
from governor.reconciler.steps.step import Halted, Paused, Work, failure_reference
from governor.reconciler.watch.blockers import ADMISSION, QUOTAS

SLOW_RETRY_S: Final = 900.0
"""The longest time between two attempts after a failure was escalated."""
BLOCKERS: Final = {FailureType.QUOTA: QUOTAS, FailureType.ADMISSION: ADMISSION}
"""Kinds whose objects are watched while a module fails for this reason."""


def seen_in(work: Work, result: Work | Halted | Paused, notified: frozenset[str], now: datetime.datetime) -> Seen:
    """Return what a run has found out about the failure of its module."""
    generation, before = work.instance.metadata.generation, work.instance.status.failure
    halted = result if isinstance(result, Halted) else None
    last = (halted.work if halted else None) or work
    return Seen(
        type=halted.failure_type if halted else None,
        run=correlation_id(),
        since=unready_since(work.instance.status, generation, now),
        reference=before.reference if work.is_rollback and before else failure_reference(last),
        is_pending=halted is not None and halted.stage == HEALTHY,
        is_ready=isinstance(result, Work) and not work.is_rollback,
        notified=notified,
    )


def paced(outcome: Outcome, seen: Seen, failure: Failure | None, policy: Policy, now: datetime.datetime) -> Outcome:
    """Return the outcome for a failure: escalated ones are retried slowly or not at all, others until they are."""
    if failure is not None and failure.is_escalated and not isinstance(outcome, Done):
        if policy.on_timeout is OnTimeout.FAIL:
            return Stalled(f"given up after {policy.timeout_s:g} s")
        delay_s = random.uniform(SLOW_RETRY_S / 2, SLOW_RETRY_S)  # noqa: S311 - jitter
        return Waiting("escalated; retried slowly, and at once if something changes", delay_s)
    if policy.on_timeout is OnTimeout.RETRY or not (seen.type or seen.is_pending):
        return outcome
    left_s = max(1.0, due_in_s(failure.since if failure else seen.since, policy, now))
    match outcome:
        case Stalled(reason=reason):
            return Waiting(reason, left_s)
        case Waiting(reason=reason, recheck_s=recheck_s):
            return Waiting(reason, min(recheck_s, left_s))
        case _:
            return outcome
