"""Removes a module from its cluster: hooks, then its objects, in reverse order; the reconciler leaves nothing behind.

Custom resources that others have made of the module's kinds stop the removal before the operator that serves them is
gone. What is removed is listed in the inventory, so that neither the chart nor the Module is needed.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.kube.applyset import DriftMode, PruneOutcome, PruneReport
from governor.kube.applyset.results import SETTLED
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Unreadable
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.installation import DeletionPolicy
from governor.reconciler.kinds.module import CustomResources
from governor.reconciler.kinds.module_instance import DELETION_POLICY, OWNER_LABEL
from governor.reconciler.kinds.state import Problem
from governor.reconciler.release.home import remove_home
from governor.reconciler.release.objects import hook_objects, module_objects, objects_client
from governor.reconciler.steps.comparison import foreign_claim
from governor.reconciler.steps.custom_resources import (
    definitions_in,
    delete_resources,
    foreign_resources,
    kept_definitions,
)
from governor.reconciler.steps.dependencies import dependents
from governor.reconciler.steps.hooks import run_event
from governor.reconciler.steps.inputs import check_connection
from governor.reconciler.steps.namespaces import (
    find_namespace,
    is_held_namespace,
    namespace_manifest,
    namespace_ref,
)
from governor.reconciler.steps.protection import unprotect
from governor.reconciler.steps.rendering import records_of
from governor.reconciler.steps.step import (
    Halt,
    Halted,
    Paused,
    Retry,
    Step,
    Work,
    failing,
    is_older,
    run,
    waiting,
)
from governor.values.printing import listed

MAX_NAMED: Final = 10
HELD_S: Final = 30.0
"""How long a removal waits for a namespace with objects of others: some of them are only being deleted."""


async def remove(work: Work) -> Work | Halt:
    """Remove the module as far as possible; the work is returned if nothing is left to do."""
    if _was_never_applied(work):
        return work
    if is_orphaned(work):
        return await run((orphan,), work, "NotReleased")
    halted = await check_connection(work)
    if not isinstance(halted, Work):
        return halted
    if foreign_claim(work):
        return work
    return await run(STEPS, work, "NotRemoved")


def _was_never_applied(work: Work) -> bool:
    """Return whether nothing was done for a ModuleInstance: a user has created it. The module may be another's."""
    status = work.status
    return OWNER_LABEL not in work.instance.metadata.labels and not (status.attempt or status.last_applied)


def is_orphaned(work: Work) -> bool:
    """Return whether the objects stay: by policy, by the opt-out, or because their Cluster is deleted."""
    chosen = work.instance.spec.deletion_policy, work.instance.metadata.annotations.deletion_policy
    return _is_cluster_deleted(work) or DeletionPolicy.ORPHAN in chosen


def _is_cluster_deleted(work: Work) -> bool:
    cluster = work.cluster.last if isinstance(work.cluster, Unreadable) else work.cluster
    return work.cluster is None or (cluster is not None and bool(cluster.metadata.deletion_timestamp))


async def orphan(work: Work) -> Work | Halt:
    """Forget the objects. In a Cluster that is deleted or does not answer, their inventory stays, too."""
    if _is_cluster_deleted(work) or work.target is None or foreign_claim(work):
        return work
    place = work.on.place
    if not isinstance(halted := await unprotect(work), Work):
        return halted
    await hook_objects(place, work.instance).orphan()
    await module_objects(place, work.instance).orphan()
    await _forget(work)
    return work


async def _forget(work: Work) -> None:
    """Delete the record and, with the last module of another cluster, the namespace of records."""
    place = work.on.place
    await records_of(work).delete()
    if place.is_remote and not work.others:
        await remove_home(place.client, place.namespace)


async def check_pause(work: Work) -> Work | Halt:
    """Halt while the Cluster is paused."""
    return Paused() if isinstance(work.cluster, Cluster) and work.cluster.spec.paused else work


async def check_dependents(work: Work) -> Work | Halt:
    """Halt until no module on the cluster depends on this one."""
    found = dependents(work.instance, work.others)
    if not found:
        return work
    return waiting(work, "DependentsExist", f"waiting until {listed(found)} are removed, which depend on this module")


async def read_inventory(work: Work) -> Work | Halt:
    """Read what must be removed, from the cluster itself."""
    entries = await module_objects(work.on.place, work.instance).inventory()
    record = await records_of(work).read()
    return msgspec.structs.replace(work, entries=entries, record=record)


async def check_custom_resources(work: Work) -> Work | Halt:
    """Halt if others have made resources of the kinds that this module defines, unless the policy says otherwise."""
    spec = work.instance.spec
    has_begun = len(work.entries) < work.status.objects  # too late; kept resources have left the inventory, too
    if has_begun or spec.custom_resources is CustomResources.ORPHAN or not definitions_in(work.entries):
        return work
    client = objects_client(work.on.place, spec)
    hooks = await hook_objects(work.on.place, work.instance).inventory()
    found = await foreign_resources(client, work.entries, hooks)
    if not found:
        return work
    named = listed([str(each.ref) for each in found])
    if spec.custom_resources is CustomResources.CASCADE:
        await delete_resources(client, found)
        return waiting(work, "DeletingCustomResources", f"waiting until {named} are deleted")
    message = f"{named} exist of kinds that the module defines: delete them, or keep everything by the annotation"
    message = f"{message} {DELETION_POLICY}: {DeletionPolicy.ORPHAN} of this ModuleInstance"
    return Halted(Problem("CustomResourcesExist", message, Actor.USER), retry=Retry.RECHECK, work=work)


async def run_before_deletion(work: Work) -> Work | Halt:
    """Run the stored hooks that come before the deletion."""
    return await _run_hooks(work, "pre-delete")


async def run_after_deletion(work: Work) -> Work | Halt:
    """Run the stored hooks that come after the deletion."""
    return await _run_hooks(work, "post-delete")


async def _run_hooks(work: Work, event: str) -> Work | Halt:
    hooks = work.record.record.hooks
    if not any(event in each.events for each in hooks):
        return work
    return await run_event(work, hooks, event, f"delete/{work.instance.metadata.uid}")


async def delete_objects(work: Work) -> Work | Halt:
    """Delete everything but the namespace, which hooks may still need; kept definitions stay."""
    spec, place = work.instance.spec, work.on.place
    if not work.entries:
        return work
    namespace = await find_namespace(work)
    objects = module_objects(place, work.instance, inherited=namespace.inherited)
    taken_over = [namespace_manifest(spec.namespace)] if namespace.inherited else []
    kept = await _kept(work) | {namespace_ref(spec.namespace)}
    report = await objects.converge(taken_over, drift=DriftMode.OFF, kept=kept, allow_empty=True)
    if not report.apply.ok:
        return waiting(work, "Removing", "; ".join(report.problems()))
    return _halted(work, report.prune) or work


async def _kept(work: Work) -> frozenset[ObjectRef]:
    """Return what stays: by policy, or with their resources, definitions; and what a service account cannot delete."""
    spec = work.instance.spec
    if spec.custom_resources is CustomResources.ORPHAN:
        definitions = frozenset(definitions_in(work.entries))
    else:
        definitions = await kept_definitions(objects_client(work.on.place, spec), work.entries)
    return definitions | ({namespace_ref(spec.namespace)} if spec.service_account_name else frozenset())


async def delete_hooks(work: Work) -> Work | Halt:
    """Delete what hooks have left."""
    return _halted(work, await hook_objects(work.on.place, work.instance).delete_all()) or work


async def finish(work: Work) -> Work | Halt:
    """Delete the namespace, the inventory and the record. A namespace with objects of others stays."""
    objects = module_objects(work.on.place, work.instance)
    if kept := await _kept(work):
        report = (await objects.converge((), drift=DriftMode.OFF, kept=kept, allow_empty=True)).prune
    else:
        report = await objects.delete_all()
    if halted := _halted(work, report, is_last=True):
        return halted
    if kept or not report.complete:
        await objects.orphan()
    await _forget(work)
    return work


def _halted(work: Work, report: PruneReport, *, is_last: bool = False) -> Halt | None:
    """Return why the removal cannot proceed yet, or None. At last a namespace with objects of others stays."""
    left = [each for each in report.results if each.outcome not in SETTLED]
    is_held = all(map(is_held_namespace, left))
    requested = work.instance.metadata.deletion_timestamp
    if is_held and not (is_last and left and not is_older(requested, HELD_S, work.on.place.clock.now())):
        return None
    texts = [f"{each.ref}: {each.outcome}: {each.reason}" for each in left if each.outcome is not PruneOutcome.SKIPPED]
    text = "; ".join(texts[:MAX_NAMED]) or "objects that must be removed first still exist"
    is_refused = any(each.outcome is PruneOutcome.REFUSED for each in left)
    return failing(work, "NotRemoved", text, Actor.USER) if is_refused else waiting(work, "Removing", text)


STEPS: Final[Sequence[Step]] = (
    check_pause,
    check_dependents,
    read_inventory,
    check_custom_resources,
    unprotect,
    run_before_deletion,
    delete_objects,
    run_after_deletion,
    delete_hooks,
    finish,
)
