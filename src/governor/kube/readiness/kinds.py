"""Readiness rules of the kinds of Kubernetes 1.36; every kind with a stable or beta version is in one of the tables.

Other kinds, alpha kinds and custom resources, are evaluated by the kstatus conventions. All versions of a kind share
one rule.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from governor.kube.objects import Object, group_of
from governor.kube.readiness import cluster, network, pods, storage, workloads
from governor.kube.readiness.conditions import GENERIC, ConditionRule
from governor.kube.readiness.fields import Metadata, convert, stale_status, termination
from governor.kube.readiness.rules import Rules
from governor.kube.readiness.state import Readiness, ready, unknown
from governor.values.trees import leaf_at

GroupKind: TypeAlias = tuple[str, str]
KindRule: TypeAlias = Callable[[Object], Readiness]

RULES_BY_KIND: Final[Mapping[GroupKind, KindRule]] = {
    ("", "Namespace"): cluster.namespace,
    ("", "Node"): cluster.node,
    ("", "PersistentVolume"): storage.persistent_volume,
    ("", "PersistentVolumeClaim"): storage.persistent_volume_claim,
    ("", "Pod"): pods.pod,
    ("", "ReplicationController"): workloads.replica_set,
    ("", "ResourceQuota"): cluster.resource_quota,
    ("", "Service"): network.service,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): cluster.validating_admission_policy,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): ConditionRule(
        required=("NamesAccepted", "KubernetesAPIApprovalPolicyConformant"), ready=("Established",)
    ),
    ("apiregistration.k8s.io", "APIService"): ConditionRule(ready=("Available",)),
    ("apps", "DaemonSet"): workloads.daemon_set,
    ("apps", "Deployment"): workloads.deployment,
    ("apps", "ReplicaSet"): workloads.replica_set,
    ("apps", "StatefulSet"): workloads.stateful_set,
    ("autoscaling", "HorizontalPodAutoscaler"): cluster.horizontal_pod_autoscaler,
    ("batch", "CronJob"): workloads.cron_job,
    ("batch", "Job"): workloads.job,
    ("certificates.k8s.io", "CertificateSigningRequest"): cluster.certificate_signing_request,
    ("certificates.k8s.io", "PodCertificateRequest"): ConditionRule(failed=("Denied", "Failed"), ready=("Issued",)),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): ConditionRule(in_progress=("Dangling",), default=ready("InForce")),
    ("networking.k8s.io", "Ingress"): network.ingress,
    ("networking.k8s.io", "ServiceCIDR"): ConditionRule(ready=("Ready",)),
    ("policy", "PodDisruptionBudget"): cluster.pod_disruption_budget,
    ("resource.k8s.io", "DeviceTaintRule"): ConditionRule(
        in_progress=("EvictionInProgress",), default=ready("InForce")
    ),
    ("resource.k8s.io", "ResourceClaim"): storage.resource_claim,
    ("storage.k8s.io", "VolumeAttachment"): storage.volume_attachment,
    ("storagemigration.k8s.io", "StorageVersionMigration"): ConditionRule(failed=("Failed",), ready=("Succeeded",)),
}

_STATELESS: Final[Mapping[str, tuple[str, ...]]] = {
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
    "scheduling.k8s.io": ("PriorityClass",),
    "storage.k8s.io": ("CSIDriver", "CSINode", "CSIStorageCapacity", "StorageClass", "VolumeAttributesClass"),
}
"""Configuration and templates: ready once the API server has stored them."""

_RECORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("ComponentStatus", "Event"),
    "coordination.k8s.io": ("Lease", "LeaseCandidate"),
    "events.k8s.io": ("Event",),
}
"""Records that the components of the cluster write."""

_REVIEWS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("Binding",),
    "authentication.k8s.io": ("SelfSubjectReview", "TokenReview"),
    "authorization.k8s.io": (
        "LocalSubjectAccessReview",
        "SelfSubjectAccessReview",
        "SelfSubjectRulesReview",
        "SubjectAccessReview",
    ),
}
"""Virtual kinds: answered on creation and never stored."""

_MAX_DIGITS: Final = 20
"""No generation has more."""

ALWAYS_READY: Final[frozenset[GroupKind]] = frozenset(
    (group, kind) for table in (_STATELESS, _RECORDS, _REVIEWS) for group, kinds in table.items() for kind in kinds
)


class _MetadataOnly(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


def compute_readiness(manifest: Object, rules: Rules | None = None) -> Readiness:
    """Return the readiness of one live object, by the caller's rules if given.

    A requested deletion and a stale status take precedence over any rule. A status that cannot be converted is UNKNOWN.
    """
    api_version, kind = manifest.get("apiVersion"), manifest.get("kind")
    group_kind = (group_of(api_version), kind) if isinstance(api_version, str) and isinstance(kind, str) else ("", "")
    try:
        return _terminating_or_stale(manifest, group_kind) or (rules or _rule_of(group_kind))(manifest)
    except msgspec.ValidationError as error:
        return unknown("Unreadable", f"its fields are not those of {kind}: {error}")


def _terminating_or_stale(manifest: Object, group_kind: GroupKind) -> Readiness | None:
    metadata = convert(manifest, _MetadataOnly).metadata
    if metadata.deletion_timestamp:
        return cluster.namespace(manifest) if group_kind == ("", "Namespace") else termination(metadata)
    observed = _observed_generation(manifest)
    return None if observed is None else stale_status(metadata, observed)


def _observed_generation(manifest: Object) -> int | None:
    """Return ``status.observedGeneration``, which some custom resources write as a string, or None."""
    value = leaf_at(manifest, ("status", "observedGeneration"))
    if isinstance(value, str) and value.isdecimal():
        return int(value[:_MAX_DIGITS])
    return value if isinstance(value, int) else None


def _rule_of(group_kind: GroupKind) -> KindRule:
    return _exists if group_kind in ALWAYS_READY else RULES_BY_KIND.get(group_kind, GENERIC)


def _exists(_: Object) -> Readiness:
    return ready("Exists")
