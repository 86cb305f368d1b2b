"""Which hooks an event runs, in which order, and what one hook needs next. Pure.

The rules are those of Helm, with two exceptions. A Job or Pod of an earlier run is replaced even without the policy
before-hook-creation: Helm fails there, and a retry would never succeed. A namespace is neither replaced nor removed by
a policy, because its contents would be deleted too; Helm makes this exception for definitions only.
"""

import datetime
import enum
from collections import Counter
from collections.abc import Sequence
from typing import Final

from governor.errors import invalid
from governor.kube.objects import Object, group_of, ref_of
from governor.kube.readiness import compute_readiness
from governor.reconciler.kinds.module_instance import HookRecord, HookState
from governor.reconciler.render.request import Hook

_JOB: Final = ("batch", "Job")
_POD: Final = ("", "Pod")
_CONTAINERS: Final = frozenset({("apiextensions.k8s.io", "CustomResourceDefinition"), ("", "Namespace")})
"""Kinds whose objects contain others."""
_MIN_TTL_S: Final = 3600
"""A Job that the cluster removes sooner after its end could end unseen, and would then run again."""


_PHASES: Final = {"Succeeded": HookState.SUCCEEDED, "Failed": HookState.FAILED}
_CONDITIONS: Final = {"Complete": HookState.SUCCEEDED, "Failed": HookState.FAILED}


class DeletePolicy(enum.StrEnum):
    """When the object of a hook is removed."""

    BEFORE_CREATION = "before-hook-creation"
    """Before the hook runs again; the default."""
    SUCCEEDED = "hook-succeeded"
    """When all hooks of the event have succeeded."""
    FAILED = "hook-failed"


class Step(enum.Enum):
    """What a started hook needs next."""

    REMOVE = enum.auto()
    """The object of an earlier run is in its place."""
    APPLY = enum.auto()
    WAIT = enum.auto()
    """The object runs, or its deletion is in progress."""
    SUCCEED = enum.auto()
    FAIL = enum.auto()


_STEPS: Final = {HookState.SUCCEEDED: Step.SUCCEED, HookState.FAILED: Step.FAIL}


def hooks_for(hooks: Sequence[Hook], event: str) -> tuple[Hook, ...]:
    """Return the hooks of an event in the order in which they run: by weight, then name, then as rendered.

    Helm renders hooks sorted by kind. INVALID if two of them are the same object: one would replace the other.
    """
    found = [hook for hook in hooks if event in hook.events]
    for name, count in Counter(map(name_of, found)).items():
        if count > 1:
            message = f"{count} hooks for {event} are the same object {name}: give them different names in the chart"
            raise invalid("hook-duplicate", message)
    return tuple(sorted(found, key=lambda hook: (hook.weight, hook.object["metadata"]["name"])))


def name_of(hook: Hook) -> str:
    """Return kind and name of a hook's object, as in its record."""
    return str(ref_of(hook.object))


def is_removed(hook: Hook, policy: DeletePolicy) -> bool:
    """Return whether the hook's object is removed by a policy."""
    return policy in (hook.delete_policies or (DeletePolicy.BEFORE_CREATION,)) and _kind_of(hook) not in _CONTAINERS


def is_replaced(hook: Hook) -> bool:
    """Return whether the object of an earlier run is removed first; otherwise the hook is applied to it."""
    return runs(hook) or is_removed(hook, DeletePolicy.BEFORE_CREATION)


def runs(hook: Hook) -> bool:
    """Return whether the hook ends when its object does; any other hook succeeds when it is applied."""
    return _kind_of(hook) in {_JOB, _POD}


def manifest_of(hook: Hook) -> Object:
    """Return the object to apply: as rendered, but a Job is not removed soon after its end."""
    manifest: Object = hook.object
    spec = manifest.get("spec")
    if _kind_of(hook) != _JOB or not isinstance(spec, dict):
        return manifest
    ttl_s = spec.get("ttlSecondsAfterFinished")
    if not isinstance(ttl_s, int) or ttl_s >= _MIN_TTL_S:
        return manifest
    return {**manifest, "spec": {**spec, "ttlSecondsAfterFinished": _MIN_TTL_S}}


def next_step(hook: Hook, record: HookRecord, live: Object | None) -> Step:
    """Return what a started hook needs next. Every object but the one that it replaces is of this run."""
    if live is not None and live["metadata"]["uid"] == record.replaces:
        return Step.REMOVE
    if live is None or not runs(hook):
        return Step.APPLY
    end = end_of(live)
    return _STEPS[end] if end else Step.WAIT


def end_of(live: Object) -> HookState | None:
    """Return how a Job or Pod has ended, or None if it runs. A Job that is about to fail or complete still runs."""
    status = live.get("status") or {}
    if live["kind"] == "Pod":
        return _PHASES.get(status.get("phase", ""))
    true = [each["type"] for each in status.get("conditions") or () if each["status"] == "True"]
    return next((_CONDITIONS[name] for name in true if name in _CONDITIONS), None)


def describe(live: Object | None) -> str:
    """Return the state of a hook's object for a message."""
    if live is None:
        return "it does not exist"
    readiness = compute_readiness(live)
    return f"{readiness.reason}: {readiness.message}" if readiness.message else readiness.reason


def is_overdue(record: HookRecord, now: datetime.datetime, timeout_s: float) -> bool:
    """Return whether a hook has been in its state for longer than the time limit."""
    return now - datetime.datetime.fromisoformat(record.time) > datetime.timedelta(seconds=timeout_s)


def _kind_of(hook: Hook) -> tuple[str, str]:
    return group_of(hook.object["apiVersion"]), hook.object["kind"]
