"""Pods, containers and their resources in no runtime's protocol: what hooks, records and explanations are about.

Each protocol translates from and to these: ``encoding`` the hook protocol, ``runtimeproxy.cri`` kubelet's.
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class Resources(msgspec.Struct, frozen=True, omit_defaults=True):
    """Linux resources; zero, an empty text and a missing entry mean "not specified"."""

    cpu_period: int = 0
    cpu_quota: int = 0
    cpu_shares: int = 0
    memory_limit_in_bytes: int = 0
    oom_score_adj: int = 0
    memory_swap_limit_in_bytes: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    hugepage_limits: Mapping[str, int] = {}
    """By page size."""
    unified: Mapping[str, str] = {}
    """Values of cgroup files, by their name."""

    def overlaid(self, update: "Resources") -> "Resources":
        """Return the resources after an update, which changes only what it specifies."""
        values = {name: value for name in SCALARS if (value := getattr(update, name))}
        if update.hugepage_limits:
            values[HUGEPAGES] = {**self.hugepage_limits, **update.hugepage_limits}
        if update.unified:
            values[UNIFIED] = {**self.unified, **update.unified}
        return msgspec.structs.replace(self, **values) if values else self


HUGEPAGES: Final = "hugepage_limits"
UNIFIED: Final = "unified"
FIELDS: Final = Resources.__struct_fields__
SCALARS: Final = tuple(name for name in FIELDS if name not in (HUGEPAGES, UNIFIED))


def overlaid(resources: Resources | None, update: Resources | None) -> Resources | None:
    """Return resources after an update; None means that nothing was ever specified."""
    if update is None:
        return resources
    return update if resources is None else resources.overlaid(update)


class PodIdentity(msgspec.Struct, frozen=True):
    """Which pod it is; ``attempt`` counts its sandboxes."""

    name: str = ""
    uid: str = ""
    namespace: str = ""
    attempt: int = 0


NO_IDENTITY: Final = PodIdentity()


class Pod(msgspec.Struct, frozen=True):
    """A pod sandbox."""

    identity: PodIdentity = NO_IDENTITY
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    cgroup_parent: str = ""
    runtime_handler: str = ""
    resources: Resources | None = None
    overhead: Resources | None = None


class Container(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container without its pod and its variables, except for its pod's cgroup parent."""

    id: str = ""
    name: str = ""
    attempt: int = 0
    annotations: Mapping[str, str] = {}
    resources: Resources | None = None
    pod_cgroup_parent: str = ""
    mounts: Mapping[str, str] = {}
    """What is mounted, by the path in the container: the path on the node, with ``:ro`` if it is read-only."""
    devices: Mapping[str, str] = {}
    """Devices by their path in the container: the path on the node and the permissions, as in ``/dev/null:rwm``."""
