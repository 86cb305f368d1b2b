"""Applies the objects of a module: claim, ordered apply, repair of drift, and guarded removal.

Objects vanish only for a changed reference. If the same chart with the same values renders fewer objects, for example
because a ``lookup`` found something else, they stay, with a Warning.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.kube.applyset import ApplySet, ConvergeReport, DriftMode, Outcome, PruneOutcome
from governor.kube.applyset.results import FOREIGN, SETTLED, SUCCEEDED
from governor.kube.controller.conditions import format_time
from governor.kube.objects import Object, ObjectRef, ref_of
from governor.reconciler.hooks.plan import hooks_for
from governor.reconciler.kinds.module_instance import Attempt
from governor.reconciler.kinds.state import DEPLOYED, HEALTHY, Problem
from governor.reconciler.release.home import ensure_home
from governor.reconciler.release.manifests import is_listed, manifests_of, name_of
from governor.reconciler.release.objects import module_objects
from governor.reconciler.release.reference import is_same, reference_text
from governor.reconciler.render.request import Rendered
from governor.reconciler.states.failures import type_of_results
from governor.reconciler.steps.comparison import REMOVAL_REFUSED, content_digest, scaled, unchanged
from governor.reconciler.steps.namespaces import (
    NAMESPACE,
    find_namespace,
    is_held_namespace,
    namespace_manifest,
    namespace_ref,
)
from governor.reconciler.steps.rendering import operation_of
from governor.reconciler.steps.step import (
    Halt,
    Halted,
    Retry,
    Work,
    failing,
    is_overdue,
    readiness_of,
    waiting,
)
from governor.values.printing import listed

_PENDING: Final = frozenset({PruneOutcome.TERMINATING, PruneOutcome.SKIPPED})
_REFUSED: Final = frozenset({Outcome.REFUSED, Outcome.CONFLICT})


async def begin(work: Work) -> Work | Halt:
    """Record what is about to be applied, unless it is under way or only repaired."""
    spec, status = work.instance.spec, work.status
    if work.is_settled:
        return work
    if work.on.place.is_remote and not work.entries:
        await ensure_home(work.on.place.client, work.on.place.namespace)
    is_adoption, attempt = work.takeover is not None, status.attempt
    is_continued = not is_adoption or (attempt is not None and attempt.is_adoption)
    if is_continued and is_same(attempt or status.last_applied, spec.chart_digest, work.values_digest):
        return work
    if _is_emptied(work):
        message = "the chart renders no objects with these values; nothing is removed: correct the values"
        return failing(work, "RendersNothing", message, Actor.USER)
    time = format_time(work.on.place.clock.now())
    attempt = Attempt(
        spec.version, spec.chart_digest, work.values_digest, time, operation_of(work), is_adoption=is_adoption
    )
    work = msgspec.structs.replace(work, status=msgspec.structs.replace(status, attempt=attempt, hooks=()))
    await work.save(work.status)
    return work


def _is_emptied(work: Work) -> bool:
    """Return whether a module that has objects would lose all of them; its namespace does not count."""
    is_empty = work.rendered is not None and not (work.rendered.objects or work.rendered.crds)
    return is_empty and bool(work.entries.keys() - {namespace_ref(work.instance.spec.namespace)})


async def prepare(work: Work) -> Work | Halt:
    """Apply definitions and the namespace before the first hook, which may need them."""
    attempt, rendered = work.status.attempt, work.rendered
    if attempt is None or attempt.is_applied or attempt.is_adoption or rendered is None:
        return work
    if not hooks_for(rendered.hooks, f"pre-{attempt.operation}"):
        return work
    report = await _converge(work, msgspec.structs.replace(rendered, objects=()), DriftMode.OFF, prune=False)
    return work if report.ok else _judged(work, report)


async def apply(work: Work) -> Work | Halt:
    """Bring the objects to the rendered state."""
    if work.is_settled:
        return work
    assert work.rendered is not None  # noqa: S101 - ``render`` comes first
    drift = DriftMode(work.instance.spec.drift.mode)
    report = await _converge(work, work.rendered, drift, prune=work.status.attempt is not None)
    return _judged(_recorded(work, report), report)


async def _converge(work: Work, rendered: Rendered, drift: DriftMode, *, prune: bool) -> ConvergeReport:
    """Apply a rendering, again if another module has created the namespace of both meanwhile."""
    report = await _converge_once(work, rendered, drift, prune=prune)
    namespace = namespace_ref(work.instance.spec.namespace)
    is_shared = any(each.ref == namespace and each.code == FOREIGN for each in report.apply.results)
    return await _converge_once(work, rendered, drift, prune=prune) if is_shared else report


async def desired_objects(work: Work, rendered: Rendered) -> tuple[ApplySet, list[Object]]:
    """Return the set of a module's objects, and what it must consist of."""
    spec, place = work.instance.spec, work.on.place
    manifests = await manifests_of(place.client, rendered)
    namespace = await find_namespace(work)
    if namespace.is_ours and not is_listed(manifests, namespace_ref(spec.namespace)):
        manifests.append(namespace_manifest(spec.namespace))
    objects = module_objects(
        place,
        work.instance,
        scaled=scaled(work.on.watch, _workloads(work, manifests)),
        inherited=namespace.inherited,
        former=work.takeover.owner if work.takeover else None,
    )
    return objects, manifests


async def _converge_once(work: Work, rendered: Rendered, drift: DriftMode, *, prune: bool) -> ConvergeReport:
    spec = work.instance.spec
    objects, manifests = await desired_objects(work, rendered)
    return await objects.converge(
        manifests,
        drift=drift,
        repairs=work.repairs,
        allow_empty=True,
        kept=_kept(work),
        prune=prune,
        unchanged=unchanged(spec, work.entries, work.on.watch),
    )


def _kept(work: Work) -> set[ObjectRef]:
    """Return what a change does not remove: what it has rendered itself before, and a service account's namespace."""
    spec, record, attempt = work.instance.spec, work.record.record, work.status.attempt
    is_same_change = attempt is not None and record.reference == reference_text(attempt)
    own = {ref for ref in work.entries if is_same_change and name_of(ref, spec.namespace) in record.objects}
    return own | ({namespace_ref(spec.namespace)} if spec.service_account_name else set())


def _recorded(work: Work, report: ConvergeReport) -> Work:
    entries = report.entries
    status = msgspec.structs.replace(work.status, inventory_digest=content_digest(entries), objects=len(entries))
    return msgspec.structs.replace(work, entries=entries, status=status, repairs=report.drift.repairs)


def _workloads(work: Work, manifests: Iterable[Object]) -> list[ObjectRef]:
    namespace = work.instance.spec.namespace
    found = [ref_of(each) for each in manifests if "replicas" in (each.get("spec") or {})]
    return [msgspec.structs.replace(each, namespace=each.namespace or namespace) for each in found]


def _judged(work: Work, report: ConvergeReport) -> Work | Halt:
    """Return the work with its objects applied, or why they are not."""
    text = "; ".join(report.problems())
    if not report.apply.ok:
        outcomes = {each.outcome for each in report.apply.results} - SUCCEEDED
        if report.pending:
            return _terminating(work, "Terminating", text)
        halted = failing(work, "NotApplied", text, Actor.USER if outcomes & _REFUSED else Actor.NOBODY)
        return msgspec.structs.replace(halted, failure=type_of_results(report.apply.results))
    if incomparable := [each for each in report.drift.objects if each.error]:
        actor = Actor.NOBODY if all(each.is_transient for each in incomparable) else Actor.USER
        return failing(work, "NotCompared", text, actor, DEPLOYED if work.status.attempt else HEALTHY)
    if left := [each for each in report.prune.results if each.outcome not in SETTLED and not is_held_namespace(each)]:
        is_pending = all(each.outcome in _PENDING for each in left)
        return _terminating(work, "Removing", text) if is_pending else failing(work, "NotRemoved", text, Actor.USER)
    work = msgspec.structs.replace(work, deviation=_drift(report, text))
    if work.status.attempt is None:
        return work if work.deviation else msgspec.structs.replace(work, deviation=_refusal(report))
    attempt = msgspec.structs.replace(work.status.attempt, is_applied=True)
    return msgspec.structs.replace(work, status=msgspec.structs.replace(work.status, attempt=attempt))


def _drift(report: ConvergeReport, text: str) -> Problem | None:
    """Return the problem of objects that others have changed and that are not repaired, or None."""
    drifted = [each for each in report.drift.objects if each.remains]
    if not drifted:
        return None
    is_contested = any(each.exhausted or any(field.exhausted for field in each.fields) for each in drifted)
    return Problem("Contested" if is_contested else "Drifted", text, Actor.USER)


def _terminating(work: Work, reason: str, text: str) -> Halt:
    """Return the halt for deletions in progress; one that takes longer than a module to become ready is stuck."""
    if not is_overdue(work, DEPLOYED):
        return waiting(work, reason, text)
    message = f"not deleted within {readiness_of(work).timeout_seconds} s: {text}"
    return Halted(Problem(reason, message, Actor.USER), DEPLOYED, Retry.RECHECK, work)


def _refusal(report: ConvergeReport) -> Problem | None:
    """Return the problem of objects that are no longer rendered, or None; a held namespace counts as removed."""
    left = report.entries.keys() - {each.ref for each in report.apply.results}
    if not (kept := sorted(each for each in left if (each.group, each.kind) != NAMESPACE)):
        return None
    message = f"{listed(map(str, kept))}: no longer rendered, although chart and values are the same; not removed"
    return Problem(REMOVAL_REFUSED, f"{message}: to remove them, change values or version", Actor.USER)


async def check_deviation(work: Work) -> Work | Halt:
    """Halt if the objects differ from what was applied; a change is completed nevertheless."""
    return Halted(work.deviation, HEALTHY, Retry.RECHECK, work) if work.deviation else work
