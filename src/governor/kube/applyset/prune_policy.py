"""Decides whether an object that is no longer desired may be pruned. Pure; in doubt the object stays."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from governor.kube.applyset.entries import Entry
from governor.kube.applyset.get import describe_termination, is_terminating
from governor.kube.applyset.ownership import has_applied, owner_of
from governor.kube.applyset.results import PruneOutcome, PruneResult
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import Object, ObjectRef

_EXAMPLES: Final = 5
_EVENTS: Final = frozenset({("", "Event"), ("events.k8s.io", "Event")})
_IN_EVERY_NAMESPACE: Final = frozenset({("", "ServiceAccount", "default"), ("", "ConfigMap", "kube-root-ca.crt")})


class Content(msgspec.Struct, frozen=True):
    """An object that deleting a namespace or CustomResourceDefinition would delete too."""

    ref: ObjectRef
    uid: str
    owners: frozenset[str] = frozenset()
    """Uids of its owner references."""
    terminating: bool = False


def decide(entry: Entry, live: Object | None, owner: Owner, settings: Settings) -> PruneResult:
    """Return the intended outcome: REMOVED and RELEASED are still to be carried out, TERMINATING to be waited for."""
    ref = entry.ref
    if live is None:
        return PruneResult(ref, PruneOutcome.ABSENT)
    if entry.uid and live["metadata"]["uid"] != entry.uid:
        return PruneResult(ref, PruneOutcome.FOREIGN, "was deleted and created again outside this set")
    if annotation := _keep_annotation(live, settings.keep_annotations):
        return PruneResult(ref, PruneOutcome.KEPT, f"has the annotation {annotation}")
    if owner_of(live, settings) != owner.id:
        return _not_owned(ref, live, settings)
    if is_terminating(live):
        return PruneResult(ref, PruneOutcome.TERMINATING, describe_termination(live))
    return PruneResult(ref, PruneOutcome.REMOVED)


def is_out_of_scope(ref: ObjectRef, settings: Settings) -> bool:
    """Return whether the set may not touch the object, whatever its inventory lists."""
    return settings.allowed_namespaces is not None and ref.namespace not in settings.allowed_namespaces


def foreign_contents(contents: Iterable[Content], pruned: Mapping[ObjectRef, str]) -> tuple[ObjectRef, ...]:
    """Return the contents that do not belong to the set.

    Excluded are pruned objects (given with their uids), their dependents, objects that Kubernetes creates, and
    objects that terminate already.
    """
    contents = tuple(contents)
    own = set(pruned.values())
    grown = True
    while grown:
        dependents = {each.uid for each in contents if each.uid not in own and each.owners and each.owners <= own}
        own |= dependents
        grown = bool(dependents)
    return tuple(
        sorted(
            each.ref
            for each in contents
            if each.uid not in own and not each.terminating and not _is_created_by_kubernetes(each.ref, pruned)
        )
    )


def held(ref: ObjectRef, foreign: tuple[ObjectRef, ...]) -> PruneResult:
    """Return the result for a namespace or CustomResourceDefinition that contains objects of others."""
    named = ", ".join(map(str, foreign[:_EXAMPLES]))
    more = f" and {len(foreign) - _EXAMPLES} more" if len(foreign) > _EXAMPLES else ""
    reason = f"contains objects outside this set: {named}{more}"
    return PruneResult(ref, PruneOutcome.HELD, reason, foreign[:_EXAMPLES])


def _keep_annotation(live: Object, keep: Mapping[str, str]) -> str:
    annotations = live["metadata"].get("annotations") or {}
    return next((f"{key}: {value}" for key, value in keep.items() if annotations.get(key) == value), "")


def _not_owned(ref: ObjectRef, live: Object, settings: Settings) -> PruneResult:
    other = owner_of(live, settings)
    if other:
        return PruneResult(ref, PruneOutcome.FOREIGN, f"belongs to {other!r}")
    if has_applied(live, settings.manager):
        return PruneResult(ref, PruneOutcome.RELEASED, "existed before the set, or its owner label was removed")
    return PruneResult(ref, PruneOutcome.FOREIGN, "has neither the owner label nor fields of this set")


def _is_created_by_kubernetes(ref: ObjectRef, pruned: Mapping[ObjectRef, str]) -> bool:
    if (ref.group, ref.kind) in _EVENTS or (ref.group, ref.kind, ref.name) in _IN_EVERY_NAMESPACE:
        return True
    # Endpoints have the name of their Service and no owner reference.
    service = ObjectRef("", "Service", ref.namespace, ref.name)
    return (ref.group, ref.kind) == ("", "Endpoints") and service in pruned
