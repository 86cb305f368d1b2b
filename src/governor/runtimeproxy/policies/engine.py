"""Evaluation of policies: which apply to a pod or container, and what they change. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from governor.runtimeproxy.hooks.calls import (
    ANNOTATIONS,
    CONTAINER_ANNOTATIONS,
    DEVICES,
    ENVIRONMENT,
    LABELS,
    MOUNTS,
)
from governor.runtimeproxy.hooks.changes import Difference, Value
from governor.runtimeproxy.hooks.handlers import Done, Limits
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.hooks.resources import TEXTS
from governor.runtimeproxy.policies.policy import (
    CLEARABLE,
    CLEARABLE_ENTRIES,
    NAMES_OF_CONTAINER,
    NAMES_OF_POD,
    SCALED,
    ContainerChanges,
    Match,
    PodChanges,
    Policy,
    QosClass,
    ResourceValues,
)
from governor.values.secret import Secret
from governor.values.selectors import actual, matches
from governor.values.selectors import mismatch as selector_mismatch
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import HUGEPAGES, SCALARS, UNIFIED, Container, Pod, Resources

_NOTHING: Final = Resources()
_LEAST: Final = {"cpu_shares": 2, "cpu_quota": 1_000}
"""The kernel's least values."""


class PolicyHandler:
    """A policy as a handler of hooks."""

    def __init__(self, policy: Policy) -> None:
        self.settings = policy
        self._match = policy.spec.match

    def selects(self, question: Question) -> bool:
        """Return whether the policy applies to a pod or container."""
        match, pod = self._match, question.pod
        return (
            matches(pod.labels, match.match_labels, match.match_expressions)
            and (not match.namespaces or pod.identity.namespace in match.namespaces)
            and all(pod.annotations.get(key) == value for key, value in match.annotations.items())
            and (not match.runtime_handlers or pod.runtime_handler in match.runtime_handlers)
            and (not match.qos_classes or qos_class(pod) in match.qos_classes)
            and (question.container is None or not match.containers or question.container.name in match.containers)
        )

    def mismatch(self, question: Question) -> str:
        """Return why the policy does not apply to a pod or its containers, or ``""``."""
        return "; ".join(_mismatches(self._match, question.pod))

    def prepare(self, _question: Question) -> bytes:
        """Return nothing: the policy reads the question itself."""
        return b""

    def start(self, _hook: Hook, _message: bytes, _limits: Limits, _done: Done) -> None:
        """Return at once: there is nothing to wait for."""
        return

    def changes(self, hook: Hook, _original: Question, asked: Question, _response: bytes) -> Iterator[Difference]:
        """Return what the policy changes."""
        spec = self.settings.spec
        if hook is Hook.PRE_RUN_POD_SANDBOX:
            return pod_changes(spec.pod or PodChanges(), asked)
        return container_changes(spec.container or ContainerChanges(), asked)

    def unavailable(self) -> str:
        """Return nothing: a policy can always be evaluated."""
        return ""


def qos_class(pod: Pod) -> QosClass | None:
    """Return a pod's class by kubelet's cgroup, with either cgroup driver; None if it is not one of kubelet's."""
    parent = pod.cgroup_parent
    if "kubepods" not in parent:
        return None
    if "besteffort" in parent:
        return QosClass.BEST_EFFORT
    return QosClass.BURSTABLE if "burstable" in parent else QosClass.GUARANTEED


def _mismatches(match: Match, pod: Pod) -> Iterator[str]:
    if wrong := selector_mismatch(pod.labels, match.match_labels, match.match_expressions):
        yield wrong
    if match.namespaces and pod.identity.namespace not in match.namespaces:
        yield f"namespace must be one of {', '.join(match.namespaces)} but is {pod.identity.namespace!r}"
    for key, value in match.annotations.items():
        if pod.annotations.get(key) != value:
            yield f"annotation {key} must be {value!r} but {actual(pod.annotations, key)}"
    if match.runtime_handlers and pod.runtime_handler not in match.runtime_handlers:
        yield f"runtime handler must be one of {', '.join(match.runtime_handlers)} but is {pod.runtime_handler!r}"
    found = qos_class(pod)
    if match.qos_classes and found not in match.qos_classes:
        yield f"QoS class must be one of {', '.join(match.qos_classes)} but is {found or 'unknown'}"


def pod_changes(changes: PodChanges, asked: Question) -> Iterator[Difference]:
    """Yield what a policy changes in a pod that starts."""
    labels, annotations, cgroup_parent, resources = NAMES_OF_POD
    pod, given = asked.pod, changes.set
    yield from _entries((labels,), pod.labels, given.labels)
    yield from _entries((annotations,), pod.annotations, given.annotations)
    yield from _cgroup_parent(cgroup_parent, pod.cgroup_parent, given.cgroup_parent)
    yield from _resources(resources, pod.resources or _NOTHING, pod.resources, changes)
    yield from _cleared_entries((labels,), pod.labels, changes.clear, LABELS)
    yield from _cleared_entries((annotations,), pod.annotations, changes.clear, ANNOTATIONS)


def container_changes(changes: ContainerChanges, asked: Question) -> Iterator[Difference]:
    """Yield what a policy changes in a container that is created or updated."""
    _, annotations, cgroup_parent, resources = NAMES_OF_CONTAINER
    container, given = asked.container, changes.set
    if container is None:
        return
    yield from _entries((annotations,), container.annotations, given.annotations)
    yield from _cleared_entries((CONTAINER_ANNOTATIONS,), container.annotations, changes.clear, ANNOTATIONS)
    present = container.resources or _NOTHING
    # What an update does not specify was scaled when the container was created.
    scalable = asked.update if asked.is_update else container.resources
    yield from _resources(resources, present, scalable, changes)
    if not asked.is_update:
        yield from _cgroup_parent(cgroup_parent, container.pod_cgroup_parent, given.cgroup_parent)
        yield from _environment(changes, asked)
        yield from _attachments(changes, container)


def _attachments(changes: ContainerChanges, container: Container) -> Iterator[Difference]:
    given = changes.set
    mounts = {each.container_path: f"{each.host_path}{':ro' * each.read_only}" for each in given.mounts}
    devices = {each.container_path: f"{each.host_path}:{each.permissions}" for each in given.devices}
    yield from _entries((MOUNTS,), container.mounts, mounts)
    yield from _entries((DEVICES,), container.devices, devices)
    yield from _cleared_entries((MOUNTS,), container.mounts, changes.clear, "mounts")
    yield from _cleared_entries((DEVICES,), container.devices, changes.clear, "devices")


def _environment(changes: ContainerChanges, asked: Question) -> Iterator[Difference]:
    cleared = _keys(changes.clear, "environment")
    if not (changes.set.environment or cleared):
        return
    before = asked.environment.texts()
    for key, value in sorted(changes.set.environment.items()):
        if before.get(key) != value:
            yield (ENVIRONMENT, key), Secret(before[key]) if key in before else None, Secret(value)
    for key in cleared:
        if key in before:
            yield (ENVIRONMENT, key), Secret(before[key]), None


def _cgroup_parent(name: str, before: str, given: str | None) -> Iterator[Difference]:
    if given is not None and given != before:
        yield (name,), before, given


def _resources(
    name: str, present: Resources, scalable: Resources | None, changes: PodChanges | ContainerChanges
) -> Iterator[Difference]:
    for path, old, new in _resource_changes(present, scalable or _NOTHING, changes):
        if old != new:
            yield (name, *path), old, new


def _resource_changes(
    present: Resources, scalable: Resources, changes: PodChanges | ContainerChanges
) -> Iterator[Difference]:
    given = changes.set
    for field in SCALARS:
        value = _scalar(field, getattr(scalable, field), changes)
        if value is not None:
            yield (field,), getattr(present, field), value
    yield from _entries((HUGEPAGES,), present.hugepage_limits, given.hugepage_limits)
    yield from _entries((UNIFIED,), present.unified, given.unified)
    yield from _cleared_entries((HUGEPAGES,), present.hugepage_limits, changes.clear, HUGEPAGES)
    yield from _cleared_entries((UNIFIED,), present.unified, changes.clear, UNIFIED)


def _scalar(field: str, scalable: int | str, changes: PodChanges | ContainerChanges) -> int | str | None:
    """Return the new value of a field, or None if the policy does not change it."""
    given: ResourceValues = changes.set
    value: int | str | None = getattr(given, field)
    if value is not None:
        return value
    factor: float | None = getattr(changes.scale, field) if field in SCALED else None
    if factor is not None and isinstance(scalable, int) and scalable > 0:
        return max(round(scalable * factor), _LEAST.get(field, 1))
    if any(CLEARABLE.get(each) == field for each in changes.clear):
        return "" if field in TEXTS else 0
    return None


def _entries(path: tuple[str, ...], before: Mapping[str, Value], given: Mapping[str, Value]) -> Iterator[Difference]:
    for key, value in sorted(given.items()):
        if before.get(key) != value:
            yield (*path, key), before.get(key), value


def _cleared_entries(
    path: tuple[str, ...], before: Mapping[str, Value], clear: tuple[str, ...], kind: str
) -> Iterator[Difference]:
    for key in _keys(clear, kind):
        if key in before:
            yield (*path, key), before[key], None


def _keys(clear: tuple[str, ...], kind: str) -> list[str]:
    """Return the keys of one map that are cleared."""
    split = (each.partition("/") for each in clear)
    return [key for name, _, key in split if key and CLEARABLE_ENTRIES.get(name) == kind]
