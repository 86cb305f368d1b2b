"""Whether anything has changed since a module was applied, from what the watches know: no request is sent. Pure."""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.domain.documents import Drift
from governor.errors import GovernorError
from governor.kube.applyset import Entries, Entry
from governor.kube.applyset.diff import patterns_for
from governor.kube.applyset.entries import is_unchanged
from governor.kube.applyset.inventory import Snapshot
from governor.kube.objects import ObjectRef
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.failure import OnTimeout
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec
from governor.reconciler.kinds.state import DEPLOYED, Problem
from governor.reconciler.release.objects import claim_of, ignored_fields, owner_of
from governor.reconciler.release.reference import is_same
from governor.reconciler.steps.step import Halt, Halted, Retry, Target, Work, failing, failure_reference
from governor.reconciler.watch import ClusterWatch, ObjectState
from governor.values.digest import digest
from governor.values.paths import Path

REMOVAL_REFUSED: Final = "RemovalRefused"
"""Reason of a module that renders fewer objects than it has, until it renders them again or is changed."""


async def compare(work: Work, rescaled: Collection[ObjectRef] = ()) -> Work | Halt:
    """Find out whether the module is as it was applied; then the steps that change something are left out.

    Of ``rescaled`` objects only the metadata is compared: their generation counts changes by this process.
    """
    spec, status, watch = work.instance.spec, work.status, work.on.watch
    snapshot = known_inventory(work.on, spec.module)
    entries = snapshot.entries if snapshot else {}
    is_settled = (
        status.attempt is None
        and status.reason != REMOVAL_REFUSED
        and is_same(status.last_applied, spec.chart_digest, work.values_digest)
        and snapshot is not None
        and status.inventory_digest == content_digest(entries)
        and _is_claimed(work, snapshot)
        and (spec.drift.mode is Drift.OFF or len(unchanged(spec, entries, watch, rescaled)) == len(entries))
    )
    return msgspec.structs.replace(work, entries=entries, is_settled=is_settled)


def known_inventory(target: Target, module: str) -> Snapshot | None:
    """Return the inventory of a module; None if there is none, or if it cannot be read."""
    found = target.watch.inventory(owner_of(module, target.place.namespace).id)
    try:
        return found.snapshot() if found else None
    except GovernorError:
        return None  # an apply reads it again, and reports why


def content_digest(entries: Entries) -> str:
    """Return the digest of what an inventory lists, without the states in which the objects were last seen."""
    if not entries:
        return ""
    return digest([[str(each.ref), each.uid, each.digest] for each in sorted(entries.values())])


def _is_claimed(work: Work, snapshot: Snapshot) -> bool:
    """Return whether this hub holds the claim; an earlier one of its own is enough while nothing changes."""
    mine, stored = claim_of(work.on.place, work.instance), snapshot.claim
    return stored is not None and stored.claim.holder == mine.holder and not mine.is_superseded_by(stored.claim)


async def check_given_up(work: Work) -> Work | Halt:
    """Halt if the same change has failed for too long, and the Cluster wants no more retries."""
    status, failure = work.status, work.status.failure
    if work.is_settled or failure is None or not failure.is_escalated:
        return work
    is_final = isinstance(work.cluster, Cluster) and work.cluster.spec.on_timeout is OnTimeout.FAIL
    if not is_final or failure.reference != failure_reference(work):
        return work
    problem = Problem(status.reason, status.message, status.actor)
    return Halted(problem, DEPLOYED, Retry.ON_CHANGE, work, failure.type)


async def check_claim(work: Work) -> Work | Halt:
    """Halt if another hub manages the module."""
    claim = "" if work.is_settled else foreign_claim(work)
    return failing(work, "Claimed", claim, Actor.OPERATOR) if claim else work


def foreign_claim(work: Work) -> str:
    """Return why the module is another hub's, or ``""``."""
    snapshot = known_inventory(work.on, work.instance.spec.module)
    stored = snapshot.claim.claim if snapshot and snapshot.claim else None
    if stored is None or stored.holder == work.on.place.holder:
        return ""
    owner = owner_of(work.instance.spec.module, work.on.place.namespace)
    return (
        f"the module is managed by another hub, {stored.holder}: remove it there, or delete the inventory, ConfigMap "
        f"{owner.namespace}/{owner.name} of the cluster, to take the module over"
    )


def unchanged(
    spec: ModuleInstanceSpec, entries: Entries, watch: ClusterWatch, rescaled: Collection[ObjectRef] = ()
) -> dict[ObjectRef, str]:
    """Return the objects that are known to be as they were seen as desired, with their resourceVersions."""
    rules = ignored_fields(spec, scaled(watch, entries))
    states = {ref: watch.state(ref) for ref in entries}
    return {
        ref: state.resource_version
        for ref, state in states.items()
        if state is not None and _is_as_seen(entries[ref], state, patterns_for(ref, rules), ref in rescaled)
    }


def scaled(watch: ClusterWatch, refs: Iterable[ObjectRef]) -> list[ObjectRef]:
    """Return the workloads whose number of replicas is an autoscaler's."""
    return [each for each in refs if watch.is_autoscaled(each)]


def _is_as_seen(entry: Entry, state: ObjectState, ignored: Iterable[Path], is_rescaled: bool) -> bool:
    if state.is_terminating or state.uid != entry.uid:
        return False
    now = state.seen(ignored)
    if is_rescaled:
        now = msgspec.structs.replace(now, generation=entry.seen.generation)
    return is_unchanged(entry.seen, now)
