"""Runs the hooks of a change before and after its objects are applied, and completes the change."""

import datetime
from collections.abc import Sequence
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError
from governor.kube.controller.conditions import format_time
from governor.reconciler.hooks.run import HookContext, HookFailed, HookResult, HooksWaiting, run_hooks
from governor.reconciler.kinds.adoption import Adopted
from governor.reconciler.kinds.module_instance import Applied, HookRecord, HookState, ModuleInstanceStatus
from governor.reconciler.kinds.state import DEPLOYED, Problem
from governor.reconciler.release.manifests import rendered_names
from governor.reconciler.release.objects import hook_objects, objects_client
from governor.reconciler.release.reference import reference_text
from governor.reconciler.render.request import Hook
from governor.reconciler.steps.rendering import records_of
from governor.reconciler.steps.step import Halt, Halted, Retry, Work, failed, failing, readiness_of, waiting

HOOK_FAILED: Final = "HookFailed"
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 300.0
MAX_HISTORY: Final = 10
DELETE_EVENTS: Final = frozenset({"pre-delete", "post-delete"})


async def write_record(work: Work) -> Work | Halt:
    """Store what the chart has generated, and its delete hooks, before anything of them is used."""
    if work.is_settled or work.rendered is None:
        return work
    hooks = tuple(each for each in work.rendered.hooks if DELETE_EVENTS & set(each.events))
    record = msgspec.structs.replace(work.record.record, recording=work.rendered.recording, hooks=hooks)
    if work.status.attempt is not None and work.rendered.lookups:
        reference = reference_text(work.status.attempt)
        before = record.objects if record.reference == reference else ()
        names = {*before, *rendered_names(work.rendered, work.instance.spec.namespace)}
        record = msgspec.structs.replace(record, reference=reference, objects=tuple(sorted(names)))
    return msgspec.structs.replace(work, record=await records_of(work).write(work.record, record))


async def run_before(work: Work) -> Work | Halt:
    """Run the hooks of a change that come before its objects."""
    attempt = work.status.attempt
    if attempt is None or attempt.is_applied:
        return work
    return await _run_change(work, f"pre-{attempt.operation}")


async def run_after(work: Work) -> Work | Halt:
    """Run the hooks of a change that come after its objects, and complete it."""
    attempt = work.status.attempt
    if attempt is None:
        return work
    result = await _run_change(work, f"post-{attempt.operation}")
    return completed(result) if isinstance(result, Work) else result


async def _run_change(work: Work, event: str) -> Work | Halt:
    hooks, attempt = work.rendered.hooks if work.rendered else (), work.status.attempt
    assert attempt is not None  # noqa: S101 - a change is under way
    if attempt.is_adoption or not any(event in each.events for each in hooks):
        return work
    return await run_event(work, hooks, event, reference_text(attempt))


async def run_event(work: Work, hooks: Sequence[Hook], event: str, reference: str) -> Work | Halt:
    """Run the hooks of one event as far as possible; a failed one again only after a while."""
    status, place = work.status, work.on.place
    if _is_too_early(status, event, reference, place.clock.now()):
        failure = status.failure.type if status.failure else None
        return Halted(Problem(status.reason, status.message, status.actor), DEPLOYED, Retry.BACKOFF, work, failure)

    saved = status.hooks

    async def save(records: tuple[HookRecord, ...]) -> None:
        nonlocal saved
        await work.save(msgspec.structs.replace(status, hooks=records))
        saved = records

    context = HookContext(
        objects=hook_objects(place, work.instance),
        client=objects_client(place, work.instance.spec),
        namespace=work.instance.spec.namespace,
        clock=place.clock,
        reference=reference,
        timeout_s=readiness_of(work).timeout_seconds,
        save=save,
    )
    try:
        return _result(work, await run_hooks(context, hooks, event, status.hooks))
    except GovernorError as error:
        return failed(_with_records(work, saved), HOOK_FAILED, error)


def _is_too_early(status: ModuleInstanceStatus, event: str, reference: str, now: datetime.datetime) -> bool:
    """Return whether a hook of this event has failed, and is not to run again yet.

    Its own objects change when it ends and is removed, which is reported like a change by a user. So the pause does not
    depend on what has caused this run: it is as long as the hook has been failing, within bounds.
    """
    failed_hooks = [each for each in status.hooks if (each.event, each.reference) == (event, reference)]
    failed_hooks = [each for each in failed_hooks if each.state is HookState.FAILED]
    if not failed_hooks or status.reason != HOOK_FAILED:
        return False
    last = max(datetime.datetime.fromisoformat(each.time) for each in failed_hooks)
    return now < last + datetime.timedelta(seconds=retry_pause_s(_failing_since(status, last), last))


def _failing_since(status: ModuleInstanceStatus, last: datetime.datetime) -> datetime.datetime:
    """Return when the change began, or a removal to fail."""
    if status.attempt is not None:
        return datetime.datetime.fromisoformat(status.attempt.time)
    return datetime.datetime.fromisoformat(status.failure.since) if status.failure is not None else last


def retry_pause_s(since: datetime.datetime, last: datetime.datetime) -> float:
    """Return how long a hook that failed last at a time is not run again; ``since`` is when it began to fail."""
    return min(max((last - since).total_seconds(), MIN_PAUSE_S), MAX_PAUSE_S)


def _result(work: Work, result: HookResult) -> Work | Halt:
    work = _with_records(work, result.records)
    if isinstance(result, HooksWaiting):
        return waiting(work, "HookRunning", result.message)
    if isinstance(result, HookFailed):
        return failing(work, HOOK_FAILED, result.message, Actor.OPERATOR)
    return work


def _with_records(work: Work, records: tuple[HookRecord, ...]) -> Work:
    return msgspec.structs.replace(work, status=msgspec.structs.replace(work.status, hooks=records))


def completed(work: Work) -> Work:
    """Return the work with its change completed: it is what was applied last, and the one before is history."""
    status, attempt = work.status, work.status.attempt
    assert attempt is not None  # noqa: S101 - a change is under way
    time = format_time(work.on.place.clock.now())
    applied = Applied(attempt.version, attempt.chart_digest, attempt.values_digest, time, attempt.operation)
    before = (status.last_applied,) if status.last_applied else ()
    history = (*before, *status.history)[:MAX_HISTORY]
    owner = work.takeover.owner if work.takeover else None
    adopted = Adopted(owner.title, time, owner.next_step) if owner else status.adopted
    changed = msgspec.structs.replace(status, last_applied=applied, history=history, attempt=None, adopted=adopted)
    return msgspec.structs.replace(work, status=changed)
