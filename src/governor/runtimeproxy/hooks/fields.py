"""Changes applied to pods and containers. Variables are set in ``environment``."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from governor.runtimeproxy.hooks.calls import (
    ANNOTATIONS,
    CGROUP_PARENT,
    CONTAINER_ANNOTATIONS,
    CONTAINER_RESOURCES,
    DEVICES,
    LABELS,
    MOUNTS,
    POD_CGROUP_PARENT,
    RESOURCES,
)
from governor.runtimeproxy.hooks.changes import Change, FieldPath, Value
from governor.runtimeproxy.hooks.requests import Request
from governor.wire.hooks.workload import Container, Pod, Resources

S = TypeVar("S", Pod, Container, Request)

_ATTRIBUTES: Mapping[str, str] = {
    LABELS: "labels",
    ANNOTATIONS: "annotations",
    CGROUP_PARENT: "cgroup_parent",
    RESOURCES: "resources",
    CONTAINER_ANNOTATIONS: "annotations",
    CONTAINER_RESOURCES: "resources",
    POD_CGROUP_PARENT: "pod_cgroup_parent",
    MOUNTS: "mounts",
    DEVICES: "devices",
}


def with_changes(subject: S, changes: Iterable[Change]) -> S:
    """Return a pod, a container or an update with these changes; None removes an entry."""
    values: dict[str, Any] = {}
    for change in changes:
        name = _ATTRIBUTES[change.path[0]]
        before = values[name] if name in values else getattr(subject, name)
        values[name] = _changed(before, change.path[1:], change.new)
    return msgspec.structs.replace(subject, **values) if values else subject


def _changed(before: Any, path: FieldPath, value: Value) -> Any:
    if not path:
        return value
    if isinstance(before, Mapping):
        return with_entry(before, path[0], value)
    resources = before or Resources()
    inner = _changed(getattr(resources, path[0]), path[1:], value)
    return msgspec.structs.replace(resources, **{path[0]: inner})


def with_entry(entries: Mapping[str, Any], key: str, value: Value) -> dict[str, Any]:
    """Return a map with an entry set, or removed by None."""
    if value is None:
        return {other: each for other, each in entries.items() if other != key}
    return {**entries, key: value}
