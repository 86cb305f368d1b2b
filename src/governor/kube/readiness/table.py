"""Which kind of Kubernetes 1.36 is judged how; each kind that its API server can serve is in one of the two tables.

A kind in neither is a custom resource, judged by the conventions for conditions. Versions of a kind share its rule.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from governor.kube.objects import Object, group_of
from governor.kube.readiness import cluster, network, pods, storage, workloads
from governor.kube.readiness.conditions import ANY_KIND, Conditions
from governor.kube.readiness.fields import Metadata, read, removal, stale
from governor.kube.readiness.rules import Rules
from governor.kube.readiness.verdict import Readiness, ready, unknown
from governor.values.trees import leaf_at

GroupKind: TypeAlias = tuple[str, str]
Judge: TypeAlias = Callable[[Object], Readiness]

RULES: Final[Mapping[GroupKind, Judge]] = {
    ("", "Namespace"): cluster.namespace,
    ("", "Node"): cluster.node,
    ("", "PersistentVolume"): storage.persistent_volume,
    ("", "PersistentVolumeClaim"): storage.persistent_volume_claim,
    ("", "Pod"): pods.pod,
    ("", "ReplicationController"): workloads.replica_set,
    ("", "ResourceQuota"): cluster.resource_quota,
    ("", "Service"): network.service,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): cluster.validating_admission_policy,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): Conditions(
        required=("NamesAccepted", "KubernetesAPIApprovalPolicyConformant"), ready=("Established",)
    ),
    ("apiregistration.k8s.io", "APIService"): Conditions(ready=("Available",)),
    ("apps", "DaemonSet"): workloads.daemon_set,
    ("apps", "Deployment"): workloads.deployment,
    ("apps", "ReplicaSet"): workloads.replica_set,
    ("apps", "StatefulSet"): workloads.stateful_set,
    ("autoscaling", "HorizontalPodAutoscaler"): cluster.horizontal_pod_autoscaler,
    ("batch", "CronJob"): workloads.cron_job,
    ("batch", "Job"): workloads.job,
    ("certificates.k8s.io", "CertificateSigningRequest"): cluster.certificate_signing_request,
    ("certificates.k8s.io", "PodCertificateRequest"): Conditions(failed=("Denied", "Failed"), ready=("Issued",)),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): Conditions(busy=("Dangling",), silence=ready("InForce")),
    ("networking.k8s.io", "Ingress"): network.ingress,
    ("networking.k8s.io", "ServiceCIDR"): Conditions(ready=("Ready",)),
    ("policy", "PodDisruptionBudget"): cluster.pod_disruption_budget,
    ("resource.k8s.io", "DeviceTaintRule"): Conditions(busy=("EvictionInProgress",), silence=ready("InForce")),
    ("resource.k8s.io", "ResourceClaim"): storage.resource_claim,
    ("resource.k8s.io", "ResourcePoolStatusRequest"): Conditions(failed=("Failed",), ready=("Complete",)),
    ("scheduling.k8s.io", "PodGroup"): Conditions(ready=("PodGroupScheduled",)),
    ("storage.k8s.io", "VolumeAttachment"): storage.volume_attachment,
    ("storagemigration.k8s.io", "StorageVersionMigration"): Conditions(failed=("Failed",), ready=("Succeeded",)),
}

_STORED: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("ConfigMap", "Endpoints", "LimitRange", "PodTemplate", "Secret", "ServiceAccount"),
    "admissionregistration.k8s.io": (
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    ),
    "apps": ("ControllerRevision",),
    "certificates.k8s.io": ("ClusterTrustBundle",),
    "discovery.k8s.io": ("EndpointSlice",),
    "flowcontrol.apiserver.k8s.io": ("PriorityLevelConfiguration",),
    "networking.k8s.io": ("IPAddress", "IngressClass", "NetworkPolicy"),
    "node.k8s.io": ("RuntimeClass",),
    "rbac.authorization.k8s.io": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    "resource.k8s.io": ("DeviceClass", "ResourceClaimTemplate", "ResourceSlice"),
    "scheduling.k8s.io": ("PriorityClass", "Workload"),
    "storage.k8s.io": ("CSIDriver", "CSINode", "CSIStorageCapacity", "StorageClass", "VolumeAttributesClass"),
}
"""Settings and templates: there is nothing to wait for once the API server has stored them."""

_RECORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("ComponentStatus", "Event"),
    "coordination.k8s.io": ("Lease", "LeaseCandidate"),
    "events.k8s.io": ("Event",),
    "internal.apiserver.k8s.io": ("StorageVersion",),
}
"""What the cluster's own parts note down; nobody waits for it."""

_QUESTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("Binding",),
    "authentication.k8s.io": ("SelfSubjectReview", "TokenReview"),
    "authorization.k8s.io": (
        "LocalSubjectAccessReview",
        "SelfSubjectAccessReview",
        "SelfSubjectRulesReview",
        "SubjectAccessReview",
    ),
}
"""Answered when created and never stored."""

_MOST_DIGITS: Final = 20
"""No generation has more."""

ALWAYS_READY: Final[frozenset[GroupKind]] = frozenset(
    (group, kind) for table in (_STORED, _RECORDS, _QUESTIONS) for group, kinds in table.items() for kind in kinds
)


class _Named(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


def judge(manifest: Object, rules: Rules | None = None) -> Readiness:
    """The readiness of one object as the API server returned it, by the caller's rules if there are any.

    Whatever the rule: a removal that was asked for and a status of another generation come first. A status that cannot
    be read is UNKNOWN.
    """
    api_version, kind = manifest.get("apiVersion"), manifest.get("kind")
    of_kind = (group_of(api_version), kind) if isinstance(api_version, str) and isinstance(kind, str) else ("", "")
    try:
        return _before_all(manifest, of_kind) or (rules or _rule(of_kind))(manifest)
    except msgspec.ValidationError as error:
        return unknown("Unreadable", f"its fields are not those of {kind}: {error}")


def _before_all(manifest: Object, of_kind: GroupKind) -> Readiness | None:
    metadata = read(manifest, _Named).metadata
    if metadata.deletion_timestamp:
        return cluster.namespace(manifest) if of_kind == ("", "Namespace") else removal(metadata)
    observed = _observed_generation(manifest)
    return None if observed is None else stale(metadata, observed)


def _observed_generation(manifest: Object) -> int | None:
    """None if it says none; some custom resources write it as a text."""
    value = leaf_at(manifest, ("status", "observedGeneration"))
    if isinstance(value, str) and value.isdecimal():
        return int(value[:_MOST_DIGITS])
    return value if isinstance(value, int) else None


def _rule(of_kind: GroupKind) -> Judge:
    return _always if of_kind in ALWAYS_READY else RULES.get(of_kind, ANY_KIND)


def _always(_: Object) -> Readiness:
    return ready("Exists")
