"""Whether an object that is no longer wanted may be removed: pure, and no in every doubt."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from governor.kube.applyset.entries import Entry
from governor.kube.applyset.get import is_terminating, waits_for
from governor.kube.applyset.ownership import applies, owner_of
from governor.kube.applyset.results import Removal, RemovalResult
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import Object, ObjectRef

_EXAMPLES: Final = 5
_EVENTS: Final = frozenset({("", "Event"), ("events.k8s.io", "Event")})
_MADE_IN_EVERY_NAMESPACE: Final = frozenset({("", "ServiceAccount", "default"), ("", "ConfigMap", "kube-root-ca.crt")})


class Content(msgspec.Struct, frozen=True):
    """One object in a namespace, or of a kind, that is about to go."""

    ref: ObjectRef
    uid: str
    owners: frozenset[str] = frozenset()
    terminating: bool = False


def judge(entry: Entry, live: Object | None, owner: Owner, settings: Settings) -> RemovalResult:
    """What shall become of it: REMOVED and RELEASED are yet to be done, TERMINATING is to be waited for."""
    ref = entry.ref
    if live is None:
        return RemovalResult(ref, Removal.ABSENT)
    if entry.uid and live["metadata"]["uid"] != entry.uid:
        return RemovalResult(ref, Removal.FOREIGN, "somebody removed ours and made another of this name")
    if kept := _kept(live, settings.keep):
        return RemovalResult(ref, Removal.KEPT, f"has the annotation {kept}")
    if owner_of(live, settings) != owner.id:
        return _not_ours(ref, live, settings)
    if is_terminating(live):
        return RemovalResult(ref, Removal.TERMINATING, waits_for(live))
    return RemovalResult(ref, Removal.REMOVED)


def out_of_bounds(ref: ObjectRef, settings: Settings) -> bool:
    """Whether the set may not touch it at all, whatever its inventory says."""
    return settings.allowed_namespaces is not None and ref.namespace not in settings.allowed_namespaces


def others(contents: Iterable[Content], removed: Mapping[ObjectRef, str]) -> tuple[ObjectRef, ...]:
    """The contents that would be taken from somebody: neither removed with them, nor made by those or by Kubernetes.

    ``removed`` are objects of the set and their uids. What is marked for removal cannot be taken from anyone.
    """
    contents = tuple(contents)
    mine = set(removed.values())
    grown = True
    while grown:
        made = {each.uid for each in contents if each.uid not in mine and each.owners and each.owners <= mine}
        mine |= made
        grown = bool(made)
    return tuple(
        sorted(
            each.ref
            for each in contents
            if each.uid not in mine and not each.terminating and not _made_by_kubernetes(each.ref, removed)
        )
    )


def held(ref: ObjectRef, foreign: tuple[ObjectRef, ...]) -> RemovalResult:
    """The result for a namespace or definition that holds objects of others."""
    named = ", ".join(map(str, foreign[:_EXAMPLES]))
    more = f" and {len(foreign) - _EXAMPLES} more" if len(foreign) > _EXAMPLES else ""
    reason = f"holds objects that are not of this set: {named}{more}"
    return RemovalResult(ref, Removal.HELD, reason, foreign[:_EXAMPLES])


def _kept(live: Object, keep: Mapping[str, str]) -> str:
    annotations = live["metadata"].get("annotations") or {}
    return next((f"{key}: {value}" for key, value in keep.items() if annotations.get(key) == value), "")


def _not_ours(ref: ObjectRef, live: Object, settings: Settings) -> RemovalResult:
    other = owner_of(live, settings)
    if other:
        return RemovalResult(ref, Removal.FOREIGN, f"belongs to {other!r}")
    if applies(live, settings.manager):
        return RemovalResult(ref, Removal.RELEASED, "was there before the set, or was taken out of it")
    return RemovalResult(ref, Removal.FOREIGN, "nothing on it says that it is of this set")


def _made_by_kubernetes(ref: ObjectRef, removed: Mapping[ObjectRef, str]) -> bool:
    if (ref.group, ref.kind) in _EVENTS or (ref.group, ref.kind, ref.name) in _MADE_IN_EVERY_NAMESPACE:
        return True
    # Endpoints have the name of their Service, and no owner.
    service = ObjectRef("", "Service", ref.namespace, ref.name)
    return (ref.group, ref.kind) == ("", "Endpoints") and service in removed
