"""A policy as written: which pods and containers it matches, and what it changes in them.

apiVersion: runtime-governor.dev/v1alpha1
kind: NodePolicy
metadata: {name: batch}
spec:
  match: {qosClasses: [BestEffort], matchLabels: {tier: batch}}
  container: {set: {cpuShares: 2, oomScoreAdj: 1000}, scale: {cpuQuota: 0.5}, clear: [cpusetCpus]}
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from governor.runtimeproxy.hooks.calls import (
    ANNOTATIONS,
    CGROUP_PARENT,
    CONTAINER_ANNOTATIONS,
    CONTAINER_RESOURCES,
    LABELS,
    POD_CGROUP_PARENT,
    RESOURCES,
)
from governor.runtimeproxy.hooks.handlers import FailurePolicy, Mode
from governor.runtimeproxy.hooks.resources import NUMBERS
from governor.values.selectors import Expression
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import HUGEPAGES, UNIFIED

API_VERSION: Final = "runtime-governor.dev/v1alpha1"
PREFIX: Final = "policy/"
"""Before a policy's name, where it stands beside names of plugins."""


class QosClass(enum.StrEnum):
    """Kubernetes' quality of service of a pod, derived from the cgroup that kubelet puts it into."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class Match(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Conditions, all of which must hold; an absent one always holds."""

    namespaces: tuple[str, ...] = ()
    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()
    annotations: dict[str, str] = {}
    qos_classes: tuple[QosClass, ...] = ()
    containers: tuple[str, ...] = ()
    """Names of containers."""
    runtime_handlers: tuple[str, ...] = ()


_Shares: TypeAlias = Annotated[int, msgspec.Meta(ge=2, le=262_144)]
_Period: TypeAlias = Annotated[int, msgspec.Meta(ge=1_000, le=1_000_000)]
_Quota: TypeAlias = Annotated[int, msgspec.Meta(ge=-1)]
_Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=-1)]
_OomScore: TypeAlias = Annotated[int, msgspec.Meta(ge=-1000, le=1000)]
_Cpuset: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$")]
_Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
_Absolute: TypeAlias = Annotated[str, msgspec.Meta(pattern="^/[^:]*$")]
_Factor: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1000)]


class ResourceValues(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Resources to set; None leaves one unchanged."""

    cpu_period: _Period | None = None
    cpu_quota: _Quota | None = None
    cpu_shares: _Shares | None = None
    memory_limit_in_bytes: _Bytes | None = None
    memory_swap_limit_in_bytes: _Bytes | None = None
    oom_score_adj: _OomScore | None = None
    cpuset_cpus: _Cpuset | None = None
    cpuset_mems: _Cpuset | None = None
    hugepage_limits: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    unified: dict[str, str] = {}


class PodValues(ResourceValues, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What is set in a pod that starts."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    cgroup_parent: _Text | None = None


class MountValue(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A file or directory of the node that is mounted."""

    host_path: _Absolute
    container_path: _Absolute
    read_only: bool = False


class DeviceValue(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A device of the node."""

    host_path: _Absolute
    container_path: _Absolute
    permissions: Annotated[str, msgspec.Meta(pattern="^[rwm]{1,3}$")] = "rwm"


class ContainerValues(ResourceValues, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What is set in a container; environment, mounts, devices and cgroup parent only when it is created."""

    annotations: dict[str, str] = {}
    environment: dict[str, str] = {}
    mounts: tuple[MountValue, ...] = ()
    devices: tuple[DeviceValue, ...] = ()
    cgroup_parent: _Text | None = None


class Factors(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Factors of resources that are specified and not unlimited."""

    cpu_quota: _Factor | None = None
    cpu_shares: _Factor | None = None
    memory_limit_in_bytes: _Factor | None = None
    memory_swap_limit_in_bytes: _Factor | None = None


class PodChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a pod that starts."""

    set: PodValues = PodValues()
    scale: Factors = Factors()
    clear: tuple[str, ...] = ()


class ContainerChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a container that is created; those of resources and annotations apply to updates too."""

    set: ContainerValues = ContainerValues()
    scale: Factors = Factors()
    clear: tuple[str, ...] = ()


class Spec(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The wanted behaviour of a policy."""

    match: Match = Match()
    order: float = 0.0
    mode: Mode = Mode.ENFORCE
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    pod: PodChanges | None = None
    container: ContainerChanges | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The name of a document."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")]


class Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A document in a file."""

    api_version: Literal["runtime-governor.dev/v1alpha1"]
    kind: Literal["NodePolicy"]
    metadata: Metadata
    spec: Spec


CLEARABLE: Final[Mapping[str, str]] = {
    "cpuPeriod": "cpu_period",
    "cpuQuota": "cpu_quota",
    "cpuShares": "cpu_shares",
    "memoryLimitInBytes": "memory_limit_in_bytes",
    "memorySwapLimitInBytes": "memory_swap_limit_in_bytes",
    "oomScoreAdj": "oom_score_adj",
    "cpusetCpus": "cpuset_cpus",
    "cpusetMems": "cpuset_mems",
}
"""Resources that can be cleared, by the name in a document."""
CLEARABLE_ENTRIES: Final[Mapping[str, str]] = {
    "hugepageLimits": HUGEPAGES,
    "unified": UNIFIED,
    "labels": LABELS,
    "annotations": ANNOTATIONS,
    "environment": "environment",
    "mounts": "mounts",
    "devices": "devices",
}
"""Maps whose entries can be cleared, as in ``unified/memory.high``."""


class Policy(msgspec.Struct, frozen=True):
    """A policy in force."""

    name: str
    spec: Spec

    @property
    def order(self) -> float:
        """Return its place among plugins and policies."""
        return self.spec.order

    @property
    def mode(self) -> Mode:
        """Return whether its changes are made."""
        return self.spec.mode

    @property
    def timeout_s(self) -> float | None:
        """Return no timeout: nothing is waited for."""
        return None

    @property
    def policies(self) -> Mapping[Hook, FailurePolicy]:
        """Return its hooks."""
        hooks = [Hook.PRE_RUN_POD_SANDBOX] if self.spec.pod else []
        if self.spec.container:
            hooks += [Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER_RESOURCES]
        return dict.fromkeys(hooks, self.spec.failure_policy)

    @property
    def label_keys(self) -> tuple[str, ...]:
        """Return the labels and annotations that decide whether it applies."""
        match = self.spec.match
        return (*match.match_labels, *(each.key for each in match.match_expressions), *match.annotations)


NAMES_OF_POD: Final = (LABELS, ANNOTATIONS, CGROUP_PARENT, RESOURCES)
NAMES_OF_CONTAINER: Final = ("", CONTAINER_ANNOTATIONS, POD_CGROUP_PARENT, CONTAINER_RESOURCES)
"""First parts of the paths of changes: labels, annotations, cgroup parent, resources."""
SCALED: Final = tuple(name for name in NUMBERS if name in Factors.__struct_fields__)
