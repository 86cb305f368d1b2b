"""Applies the objects of a module: claim, ordered apply, repair of drift, and guarded removal.

Objects vanish only for a changed reference. If the same chart with the same values renders fewer objects, for example
because a ``lookup`` found something else, they stay, with a Warning.
"""

from collections.abc import Awaitable, Iterable
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError
from governor.kube.applyset import ConvergeReport, DriftMode, Outcome, UnrecordedError
from governor.kube.applyset.inventory import CLAIM_LOST
from governor.kube.applyset.results import SUCCEEDED
from governor.kube.controller.conditions import format_time
from governor.kube.objects import Object, ObjectRef
from governor.reconciler.hooks.plan import hooks_for
from governor.reconciler.kinds.module_instance import Attempt, Operation
from governor.reconciler.release.home import ensure_home
from governor.reconciler.release.objects import module_objects, owner_of
from governor.reconciler.release.reference import is_same
from governor.reconciler.render.request import Rendered
from governor.reconciler.steps.comparison import changed, content_digest, known_inventory, scaled
from governor.reconciler.steps.manifests import (
    is_listed,
    manifests_of,
    namespace_manifest,
    namespace_owner,
    namespace_ref,
)
from governor.reconciler.steps.step import TRANSIENT, Halt, Work, failing, unhealthy, waiting
from governor.reconciler.watch import module_of
from governor.values.printing import listed

_REFUSED: Final = frozenset({Outcome.REFUSED, Outcome.CONFLICT})


async def begin(work: Work) -> Work | Halt:
    """Record what is about to be applied, unless it is under way or only repaired."""
    spec, status = work.instance.spec, work.status
    is_under_way = is_same(status.attempt, spec.chart_digest, work.values_digest)
    if work.is_settled or is_under_way:
        return work
    if is_same(status.last_applied, spec.chart_digest, work.values_digest):
        return _with_attempt(work, None) if status.attempt else work
    if work.entries and _is_empty(work):
        message = "the chart renders no objects with these values; nothing is removed: correct the values"
        return failing(work, "RendersNothing", message, Actor.USER)
    time = format_time(work.on.place.clock.now())
    attempt = Attempt(spec.version, spec.chart_digest, work.values_digest, time, operation=operation_of(work))
    status = msgspec.structs.replace(status, attempt=attempt, hooks=())
    work = msgspec.structs.replace(work, status=status)
    if work.on.place.is_remote and not work.entries:
        await ensure_home(work.on.place.client, work.on.place.namespace)
    await work.save(work.status)
    return work


def _with_attempt(work: Work, attempt: Attempt | None) -> Work:
    return msgspec.structs.replace(work, status=msgspec.structs.replace(work.status, attempt=attempt))


def _is_empty(work: Work) -> bool:
    return work.rendered is not None and not (work.rendered.objects or work.rendered.crds)


def operation_of(work: Work) -> Operation:
    """Return what a change is: an install until one has succeeded, then an upgrade, or a rollback to an earlier one."""
    status = work.status
    if status.last_applied is None:
        # Objects without a history: this hub was restored, or the cluster had another one.
        was_installed = bool(work.entries) and status.attempt is None
        return Operation.UPGRADE if was_installed else Operation.INSTALL
    digest = work.instance.spec.chart_digest
    was_applied = any(is_same(each, digest, work.values_digest) for each in status.history)
    return Operation.ROLLBACK if was_applied else Operation.UPGRADE


async def prepare(work: Work) -> Work | Halt:
    """Apply definitions and the namespace before the first hook, which may need them."""
    attempt, rendered = work.status.attempt, work.rendered
    if attempt is None or attempt.is_applied or rendered is None:
        return work
    if not hooks_for(rendered.hooks, f"pre-{attempt.operation}"):
        return work
    return await _with_errors(work, _apply(work, msgspec.structs.replace(rendered, objects=()), is_partial=True))


async def apply(work: Work) -> Work | Halt:
    """Bring the objects to the rendered state."""
    if work.is_settled:
        return work
    assert work.rendered is not None  # noqa: S101 - ``render`` comes first
    return await _with_errors(work, _apply(work, work.rendered))


async def _with_errors(work: Work, applied: Awaitable[Work | Halt]) -> Work | Halt:
    try:
        return await applied
    except GovernorError as error:
        if error.code == CLAIM_LOST:
            return failing(work, "Claimed", error, Actor.OPERATOR)
        is_transient = isinstance(error, UnrecordedError) or error.kind in TRANSIENT
        return failing(work, "NotApplied", error, Actor.NOBODY if is_transient else Actor.OPERATOR)


async def _apply(work: Work, rendered: Rendered, *, is_partial: bool = False) -> Work | Halt:
    spec, place = work.instance.spec, work.on.place
    claim = foreign_claim(work)
    if claim is not None:
        return failing(work, "Claimed", claim, Actor.OPERATOR)
    owner = await namespace_owner(place.client, spec.namespace)
    manifests = await manifests_of(place.client, rendered)
    inherited = is_inherited(work, owner.id)
    is_ours = not owner.exists or owner.id == owner_of(spec.module, place.namespace).id or inherited
    if is_ours and not spec.service_account_name and not is_listed(manifests, namespace_ref(spec.namespace)):
        manifests.append(namespace_manifest(spec.namespace))
    objects = module_objects(
        place,
        work.instance,
        scaled=scaled(work.on.watch, _workloads(work, manifests)),
        inherited=frozenset({owner.id}) if inherited else frozenset(),
    )
    kept = _unrendered(work, manifests) if is_partial or work.status.attempt is None else frozenset()
    report = await objects.converge(
        manifests,
        drift=DriftMode.OFF if is_partial else DriftMode(spec.drift.mode),
        repairs=work.repairs,
        allow_empty=True,
        kept=kept,
        unchanged=work.entries.keys() - changed(spec, work.entries.values(), work.on.watch),
    )
    if is_partial:
        return work if report.ok else _judged(work, report, ())
    work = _recorded(work, report)
    return _judged(work, report, kept)


def foreign_claim(work: Work) -> str | None:
    """Return why the module is another hub's, or None."""
    snapshot = known_inventory(work.on, work.instance.spec.module)
    stored = snapshot.claim.claim if snapshot and snapshot.claim else None
    if stored is None or stored.holder == work.on.place.holder:
        return None
    place = f"ConfigMap {work.on.place.namespace}/module-{work.instance.spec.module}"
    return (
        f"the module is managed by another hub, {stored.holder}: remove it there, or delete the inventory, "
        f"{place} of the cluster, to take the module over"
    )


def _recorded(work: Work, report: ConvergeReport) -> Work:
    entries = report.entries
    status = msgspec.structs.replace(work.status, inventory_digest=content_digest(entries), objects=len(entries))
    return msgspec.structs.replace(work, entries=entries, status=status, repairs=report.drift.repairs)


def is_inherited(work: Work, owner: str) -> bool:
    """Return whether a namespace belongs to a module that is gone: the modules that remain in it take it over."""
    place, module = work.on.place, module_of(owner)
    is_of_this_hub = bool(module) and owner == owner_of(module, place.namespace).id
    return is_of_this_hub and module != work.instance.spec.module and work.on.watch.inventory(owner) is None


def _workloads(work: Work, manifests: Iterable[Object]) -> list[ObjectRef]:
    namespace = work.instance.spec.namespace
    found = [each for each in manifests if "replicas" in (each.get("spec") or {})]
    return [
        ObjectRef(
            each["apiVersion"].rpartition("/")[0],
            each["kind"],
            each["metadata"].get("namespace") or namespace,
            each["metadata"]["name"],
        )
        for each in found
    ]


def _unrendered(work: Work, manifests: Iterable[Object]) -> frozenset[ObjectRef]:
    """Return the applied objects that are not rendered. Without a changed reference they are not removed."""
    namespace = work.instance.spec.namespace
    found = {_identity(each, namespace) for each in manifests}
    return frozenset(ref for ref in work.entries if (ref.kind, ref.name, ref.namespace or namespace) not in found)


def _identity(manifest: Object, namespace: str) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata["name"], metadata.get("namespace") or namespace


def _judged(work: Work, report: ConvergeReport, kept: Iterable[ObjectRef]) -> Work | Halt:
    """Return the work, or why the module is not as desired."""
    text = "; ".join(report.problems())
    if not report.apply.ok:
        outcomes = {each.outcome for each in report.apply.results} - SUCCEEDED
        if report.pending:
            return waiting(work, "Terminating", text)
        return failing(work, "NotApplied", text, Actor.USER if outcomes & _REFUSED else Actor.NOBODY)
    if not report.prune.complete:
        return waiting(work, "Removing", text) if report.pending else failing(work, "NotRemoved", text, Actor.USER)
    if drifted := [each for each in report.drift.objects if each.remains]:
        is_contested = any(each.exhausted or any(field.exhausted for field in each.fields) for each in drifted)
        return unhealthy(work, "Contested" if is_contested else "Drifted", text, Actor.USER)
    if kept:
        message = f"{listed(map(str, kept))}: no longer rendered, although chart and values are the same; not removed"
        return unhealthy(work, "RemovalRefused", f"{message}: to remove them, change values or version", Actor.USER)
    if work.status.attempt is None:
        return work
    return _with_attempt(work, msgspec.structs.replace(work.status.attempt, is_applied=True))
