"""Protects the objects of a module from others by an admission policy, and removes it before anything else."""

import msgspec

from governor.domain.conditions import Actor
from governor.kube.applyset import Entry
from governor.kube.applyset.entries import is_unchanged
from governor.kube.objects import Object
from governor.reconciler.kinds.module import Protection
from governor.reconciler.kinds.state import DEPLOYED
from governor.reconciler.release.objects import (
    SETTINGS,
    ignored_fields,
    owner_of,
    policy_objects,
    policy_owner_of,
)
from governor.reconciler.release.policy import policy_manifests
from governor.reconciler.steps.step import Halt, Work, failing, waiting
from governor.reconciler.watch import ObjectState
from governor.values.digest import digest


async def protect(work: Work) -> Work | Halt:
    """Install, repair or remove the policy as the protection of the module says."""
    if work.instance.spec.protection is not Protection.POLICY:
        return await unprotect(work)
    manifests = _manifests(work)
    wanted = digest(manifests)
    if _is_protected(work, wanted):
        return work
    report = await policy_objects(work.on.place, work.instance).converge(manifests)
    if not report.ok:
        return failing(work, "NotProtected", "; ".join(report.problems()), Actor.OPERATOR)
    return _with_digest(work, wanted)


async def unprotect(work: Work) -> Work | Halt:
    """Remove the policy, if there is one."""
    place, module = work.on.place, work.instance.spec.module
    is_known = work.on.watch.inventory(policy_owner_of(module, place.namespace).id) is not None
    if not (is_known or work.status.policy_digest):
        return work
    report = await policy_objects(place, work.instance).delete_all()
    if not report.complete:
        return waiting(work, "RemovingPolicy", "waiting until the admission policy is removed", DEPLOYED)
    return _with_digest(work, "")


def _with_digest(work: Work, policy_digest: str) -> Work:
    return msgspec.structs.replace(work, status=msgspec.structs.replace(work.status, policy_digest=policy_digest))


def _manifests(work: Work) -> list[Object]:
    """Return the policy for the applied objects; nothing is rendered for it."""
    place, instance = work.on.place, work.instance
    accounts = [each for each in work.entries if (each.group, each.kind) == ("", "ServiceAccount")]
    owner = owner_of(instance.spec.module, place.namespace).id
    return policy_manifests(instance, owner, SETTINGS.owner_label, ignored_fields(instance.spec, ()), accounts)


def _is_protected(work: Work, wanted: str) -> bool:
    """Return whether the policy is as it was applied, as far as the watches know: no request is sent."""
    watch = work.on.watch
    found = watch.inventory(policy_owner_of(work.instance.spec.module, work.on.place.namespace).id)
    if found is None or work.status.policy_digest != wanted:
        return False
    entries = found.snapshot().entries
    return bool(entries) and all(_is_as_seen(entry, watch.state(ref)) for ref, entry in entries.items())


def _is_as_seen(entry: Entry, state: ObjectState | None) -> bool:
    return state is not None and not state.is_terminating and is_unchanged(entry.seen, state.seen(()))
