"""The permissions of the agent in a cluster, each with its reason.

The chart's rules, their reference and ``doctor`` derive from them. A test on a real API server compares them with the
requests that an agent sends: none is missing, and none is superfluous.
"""

import enum
from collections.abc import Iterator
from typing import Final

import msgspec

from governor.domain.dapr.kinds import GROUP as DAPR

GOVERNOR: Final = "runtime-governor.dev"


class Scope(enum.StrEnum):
    """Where a permission is granted."""

    MANAGED = "namespaces"
    """In each namespace that the agent manages."""
    STATE = "state namespace"
    """In the namespace of the agent's own state."""
    CLUSTER = "cluster"
    """In all namespaces."""


class Permission(msgspec.Struct, frozen=True):
    """Verbs on resources of one API group; a subresource is ``RESOURCE/NAME``. ``name`` limits it to one object."""

    scope: Scope
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str
    name: str = ""

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each resource with each verb."""
        return ((resource, verb) for resource in self.resources for verb in self.verbs)


_DAPR_RESOURCES: Final = (
    "components",
    "configurations",
    "httpendpoints",
    "mcpservers",
    "resiliencies",
    "subscriptions",
    "workflowaccesspolicies",
)
_WRITTEN: Final = ("get", "list", "watch", "create", "patch", "delete")

PERMISSIONS: Final = (
    Permission(Scope.MANAGED, DAPR, _DAPR_RESOURCES, _WRITTEN, "the Dapr resources of a delivery"),
    Permission(
        Scope.MANAGED, "", ("secrets",), _WRITTEN, "their sensitive values, and the Secrets that others refer to"
    ),
    Permission(Scope.MANAGED, "", ("pods",), ("list", "watch"), "the sidecars"),
    Permission(Scope.MANAGED, "", ("pods/log",), ("get",), "the last errors of a sidecar that exits"),
    Permission(Scope.MANAGED, "", ("pods/proxy",), ("get",), "sidecars that the agent cannot reach by pod IP"),
    Permission(Scope.MANAGED, "", ("pods/eviction",), ("create",), "restarts of bare ReplicaSets"),
    Permission(Scope.MANAGED, "", ("events",), ("create", "patch"), "what `kubectl describe` shows"),
    Permission(
        Scope.MANAGED,
        "apps",
        ("daemonsets", "replicasets"),
        ("get", "list", "watch", "patch"),
        "workloads and restarts",
    ),
    Permission(
        Scope.MANAGED, "apps", ("deployments", "statefulsets"), ("get", "watch", "patch"), "the same; see list below"
    ),
    Permission(Scope.MANAGED, "batch", ("cronjobs", "jobs"), ("list", "watch"), "workloads that are never restarted"),
    Permission(Scope.MANAGED, "batch", ("jobs",), ("create", "patch", "delete"), "preflight: its throw-away pods"),
    Permission(
        Scope.MANAGED,
        "networking.k8s.io",
        ("networkpolicies",),
        ("list",),
        "preflight: whether a failed connection proves anything",
    ),
    Permission(
        Scope.MANAGED, "policy", ("poddisruptionbudgets",), ("list",), "restarts wait while a budget allows none"
    ),
    Permission(
        Scope.MANAGED, "", ("configmaps",), ("get", "create", "patch"), "the mark of a namespace that it governs"
    ),
    Permission(Scope.MANAGED, GOVERNOR, ("runtimestatuses",), ("get", "create", "patch"), "what `kubectl get` shows"),
    Permission(Scope.MANAGED, GOVERNOR, ("runtimestatuses/status",), ("patch",), "the same"),
    Permission(
        Scope.STATE, "", ("secrets",), ("get", "list", "create", "update", "delete"), "key, membership and deliveries"
    ),
    Permission(Scope.STATE, "", ("configmaps",), ("get", "create", "update"), "the inventory of what was written"),
    Permission(
        Scope.STATE, "coordination.k8s.io", ("leases",), ("get", "create", "update"), "which of the replicas works"
    ),
    Permission(Scope.STATE, "", ("namespaces",), ("get",), "a hold by an annotation of this namespace"),
    Permission(
        Scope.CLUSTER,
        "apps",
        ("deployments", "statefulsets"),
        ("list",),
        "whether Dapr's control plane is available; those of the namespaces too",
    ),
    Permission(Scope.CLUSTER, "", ("namespaces",), ("get",), "the uid of the cluster, for the claim", "kube-system"),
)

OBSERVED: Final = (
    Permission(Scope.MANAGED, DAPR, _DAPR_RESOURCES, ("list", "watch"), "the Dapr resources that others applied"),
    Permission(Scope.MANAGED, "", ("pods",), ("list", "watch"), "the sidecars"),
    Permission(Scope.MANAGED, "", ("pods/log",), ("get",), "the last errors of a sidecar that exits"),
    Permission(Scope.MANAGED, "", ("pods/proxy",), ("get",), "sidecars that cannot be reached by pod IP"),
    Permission(
        Scope.MANAGED,
        "apps",
        ("daemonsets", "deployments", "replicasets", "statefulsets"),
        ("list", "watch"),
        "the workloads of the sidecars",
    ),
    Permission(Scope.MANAGED, "batch", ("cronjobs", "jobs"), ("list", "watch"), "the same"),
)
"""What an agent that only observes needs."""
