"""Runs the hooks of a change before and after its objects are applied, and completes the change."""

from collections.abc import Sequence
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError
from governor.kube.controller.conditions import format_time
from governor.reconciler.hooks.run import HookContext, HookFailed, HookResult, HooksWaiting, run_hooks
from governor.reconciler.kinds.adoption import Adopted
from governor.reconciler.kinds.module_instance import Applied, HookRecord
from governor.reconciler.release.manifests import rendered_names
from governor.reconciler.release.objects import hook_objects, objects_client
from governor.reconciler.release.reference import reference_text
from governor.reconciler.render.request import Hook
from governor.reconciler.steps.rendering import records_of
from governor.reconciler.steps.step import Halt, Work, failed, failing, readiness_of, waiting

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
    """Run the hooks of one event as far as possible."""
    status, place = work.status, work.on.place

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
        return failed(_with_records(work, saved), "HookFailed", error)


def _result(work: Work, result: HookResult) -> Work | Halt:
    work = _with_records(work, result.records)
    if isinstance(result, HooksWaiting):
        return waiting(work, "HookRunning", result.message)
    if isinstance(result, HookFailed):
        return failing(work, "HookFailed", result.message, Actor.OPERATOR)
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
