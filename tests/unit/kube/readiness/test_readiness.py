"""Readiness of kinds other than workloads, of custom resources, and summaries."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.objects import Object, ObjectRef
from governor.kube.readiness.kinds import ALWAYS_READY, RULES_BY_KIND, compute_readiness
from governor.kube.readiness.state import (
    Readiness,
    State,
    failed,
    progressing,
    ready,
    summarise,
    terminating,
    unknown,
)


def _object(kind: str, status: Any = None, spec: Any = None, **metadata: Any) -> Object:
    api_version, _, name = kind.rpartition(" ")
    manifest = {"apiVersion": api_version or "v1", "kind": name, "metadata": {"name": "x", "generation": 1} | metadata}
    return manifest | ({} if spec is None else {"spec": spec}) | ({} if status is None else {"status": status})


def _conditions(**statuses: str) -> Object:
    return {
        "conditions": [
            {"type": name, "status": status, "reason": f"Why{name}", "message": f"about {name}"}
            for name, status in statuses.items()
        ]
    }


CRD = "apiextensions.k8s.io/v1 CustomResourceDefinition"
HPA = "autoscaling/v2 HorizontalPodAutoscaler"
PDB = "policy/v1 PodDisruptionBudget"
CSR = "certificates.k8s.io/v1 CertificateSigningRequest"
CUSTOM = "example.com/v1 Widget"


@pytest.mark.parametrize(
    ("manifest", "state", "reason"),
    [
        (_object("Namespace", {"phase": "Active"}), State.READY, "Active"),
        (_object("Namespace", {"phase": "Terminating"}), State.TERMINATING, "Terminating"),
        (_object("Node", _conditions(Ready="True")), State.READY, "Ready"),
        (_object("Node", _conditions(Ready="True"), {"unschedulable": True}), State.READY, "Cordoned"),
        (_object("Node", _conditions(Ready="True", MemoryPressure="True")), State.READY, "Ready"),
        (
            _object("Node", _conditions(Ready="True", NetworkUnavailable="True")),
            State.PROGRESSING,
            "WhyNetworkUnavailable",
        ),
        (_object("Node", _conditions(Ready="False")), State.PROGRESSING, "WhyReady"),
        (_object("Node", _conditions(Ready="Unknown")), State.UNKNOWN, "WhyReady"),
        (_object("Node"), State.PROGRESSING, "NoStatus"),
        (_object("Service", {}, {"type": "ClusterIP"}), State.READY, "ClusterIP"),
        (_object("Service", {}, {"type": "ExternalName"}), State.READY, "ExternalName"),
        (_object("Service", {"loadBalancer": {}}, {"type": "LoadBalancer"}), State.PROGRESSING, "LoadBalancerPending"),
        (
            _object("Service", {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}, {"type": "LoadBalancer"}),
            State.READY,
            "LoadBalancer",
        ),
        (
            _object(
                "Service",
                {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ports": [{"port": 80, "error": "Taken"}]}]}},
                {"type": "LoadBalancer"},
            ),
            State.FAILED,
            "PortError",
        ),
        (_object("networking.k8s.io/v1 Ingress", {}), State.READY, "NoAddress"),
        (
            _object("networking.k8s.io/v1 Ingress", {"loadBalancer": {"ingress": [{"hostname": "a"}]}}),
            State.READY,
            "Address",
        ),
        (_object("PersistentVolumeClaim", {"phase": "Pending"}), State.PROGRESSING, "Pending"),
        (_object("PersistentVolumeClaim", {"phase": "Lost"}), State.FAILED, "Lost"),
        (_object("PersistentVolumeClaim", {"phase": "Bound"}), State.READY, "Bound"),
        (
            _object("PersistentVolumeClaim", {"phase": "Bound"} | _conditions(Resizing="True")),
            State.PROGRESSING,
            "WhyResizing",
        ),
        (
            _object("PersistentVolumeClaim", {"phase": "Bound"} | _conditions(FileSystemResizePending="True")),
            State.READY,
            "Bound",
        ),
        (
            _object("PersistentVolumeClaim", {"phase": "Bound"} | _conditions(ModifyVolumeError="True")),
            State.FAILED,
            "WhyModifyVolumeError",
        ),
        (_object("PersistentVolume", {"phase": "Available"}), State.READY, "Available"),
        (_object("PersistentVolume", {"phase": "Released"}), State.READY, "Released"),
        (
            _object("PersistentVolume", {"phase": "Released"}, {"persistentVolumeReclaimPolicy": "Delete"}),
            State.PROGRESSING,
            "Released",
        ),
        (_object("PersistentVolume", {"phase": "Failed", "message": "no"}), State.FAILED, "Failed"),
        (_object("PersistentVolume"), State.PROGRESSING, "Pending"),
        (_object("storage.k8s.io/v1 VolumeAttachment", {"attached": True}), State.READY, "Attached"),
        (
            _object("storage.k8s.io/v1 VolumeAttachment", {"attached": False, "attachError": {"message": "busy"}}),
            State.PROGRESSING,
            "Attaching",
        ),
        (_object("resource.k8s.io/v1 ResourceClaim", {}), State.PROGRESSING, "NotAllocated"),
        (_object("resource.k8s.io/v1beta1 ResourceClaim", {"allocation": {}}), State.READY, "Allocated"),
        (_object(CRD, _conditions(NamesAccepted="True", Established="True")), State.READY, "WhyEstablished"),
        (_object(CRD, _conditions(NamesAccepted="True")), State.PROGRESSING, "NoStatus"),
        (_object(CRD, _conditions(NamesAccepted="True", Established="False")), State.PROGRESSING, "WhyEstablished"),
        (_object(CRD, _conditions(NamesAccepted="False", Established="False")), State.FAILED, "WhyNamesAccepted"),
        (
            _object(CRD, _conditions(KubernetesAPIApprovalPolicyConformant="False")),
            State.FAILED,
            "WhyKubernetesAPIApprovalPolicyConformant",
        ),
        (_object("apiregistration.k8s.io/v1 APIService", _conditions(Available="True")), State.READY, "WhyAvailable"),
        (
            _object("apiregistration.k8s.io/v1 APIService", _conditions(Available="False")),
            State.PROGRESSING,
            "WhyAvailable",
        ),
        (_object(HPA, {}), State.PROGRESSING, "NoStatus"),
        (_object(HPA, _conditions(AbleToScale="True", ScalingActive="True")), State.READY, "Scaling"),
        (_object(HPA, _conditions(AbleToScale="True", ScalingActive="False")), State.PROGRESSING, "WhyScalingActive"),
        (_object(HPA, _conditions(AbleToScale="False")), State.PROGRESSING, "WhyAbleToScale"),
        (
            _object(HPA, {"conditions": [{"type": "ScalingActive", "status": "False", "reason": "ScalingDisabled"}]}),
            State.READY,
            "Scaling",
        ),
        (
            _object("autoscaling/v1 HorizontalPodAutoscaler", {"observedGeneration": 1, "desiredReplicas": 1}),
            State.READY,
            "NoConditions",
        ),
        (_object(PDB, {}), State.PROGRESSING, "StaleStatus"),
        (_object(PDB, {"observedGeneration": 1}), State.READY, "Computed"),
        (
            _object(PDB, {"observedGeneration": 1} | _conditions(DisruptionAllowed="False")),
            State.READY,
            "WhyDisruptionAllowed",
        ),
        (
            _object(
                PDB,
                {"observedGeneration": 1, "conditions": [{"type": "DisruptionAllowed", "reason": "SyncFailed"}]},
            ),
            State.FAILED,
            "SyncFailed",
        ),
        (_object(CSR, {}), State.PROGRESSING, "AwaitingApproval"),
        (_object(CSR, _conditions(Approved="True")), State.PROGRESSING, "Approved"),
        (_object(CSR, _conditions(Approved="True") | {"certificate": "LS0t"}), State.READY, "Issued"),
        (_object(CSR, _conditions(Denied="True")), State.FAILED, "WhyDenied"),
        (_object(CSR, _conditions(Approved="True", Failed="True")), State.FAILED, "WhyFailed"),
        (_object("ResourceQuota", {}, {"hard": {"pods": "4"}}), State.PROGRESSING, "NotComputed"),
        (
            _object("ResourceQuota", {"hard": {"pods": "3"}, "used": {"pods": "0"}}, {"hard": {"pods": "4"}}),
            State.PROGRESSING,
            "NotComputed",
        ),
        (
            _object("ResourceQuota", {"hard": {"pods": "4"}, "used": {"pods": "0"}}, {"hard": {"pods": "4"}}),
            State.READY,
            "Computed",
        ),
        (
            _object(
                "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy",
                {"typeChecking": {"expressionWarnings": [{"fieldRef": "spec.x", "warning": "no such key"}]}},
            ),
            State.READY,
            "TypeWarnings",
        ),
        (_object("admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy"), State.READY, "InForce"),
        (_object("flowcontrol.apiserver.k8s.io/v1 FlowSchema", _conditions(Dangling="False")), State.READY, "InForce"),
        (
            _object("flowcontrol.apiserver.k8s.io/v1 FlowSchema", _conditions(Dangling="True")),
            State.PROGRESSING,
            "WhyDangling",
        ),
        (_object("ConfigMap"), State.READY, "Exists"),
        (_object("admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration"), State.READY, "Exists"),
    ],
)
def test_each_kind_has_its_own_rule(manifest: Object, state: State, reason: str) -> None:
    readiness = compute_readiness(manifest)
    assert (readiness.state, readiness.reason) == (state, reason)


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        (None, State.READY, "NoConditions"),
        ({"phase": "whatever"}, State.READY, "NoConditions"),
        (_conditions(Synced="False"), State.READY, "NoConditions"),
        (_conditions(Ready="True"), State.READY, "WhyReady"),
        (_conditions(Ready="False"), State.PROGRESSING, "WhyReady"),
        (_conditions(Ready="Unknown"), State.PROGRESSING, "WhyReady"),
        (_conditions(Available="True"), State.READY, "WhyAvailable"),
        (_conditions(Available="True", Ready="False"), State.PROGRESSING, "WhyReady"),
        (_conditions(Ready="True", Reconciling="True"), State.PROGRESSING, "WhyReconciling"),
        (_conditions(Ready="True", Reconciling="True", Stalled="True"), State.FAILED, "WhyStalled"),
        (_conditions(Ready="True", Stalled="False"), State.READY, "WhyReady"),
        (_conditions(Ready="True") | {"observedGeneration": 1}, State.READY, "WhyReady"),
        (_conditions(Ready="True") | {"observedGeneration": "1"}, State.READY, "WhyReady"),
        (_conditions(Ready="True") | {"observedGeneration": "0"}, State.PROGRESSING, "StaleStatus"),
        (_conditions(Ready="True") | {"observedGeneration": 0}, State.PROGRESSING, "StaleStatus"),
        (_conditions(Ready="True") | {"observedGeneration": 7}, State.PROGRESSING, "StaleStatus"),
        (
            {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 0}]},
            State.PROGRESSING,
            "StaleStatus",
        ),
        (
            {"conditions": [{"type": "Other", "status": "True", "observedGeneration": 0}]},
            State.READY,
            "NoConditions",
        ),
        ({"conditions": None}, State.READY, "NoConditions"),
        ({"conditions": {"Ready": True}}, State.UNKNOWN, "Unreadable"),
        ("fine", State.UNKNOWN, "Unreadable"),
    ],
)
def test_a_custom_resource_follows_the_kstatus_conventions(status: Any, state: State, reason: str) -> None:
    readiness = compute_readiness(_object(CUSTOM, status))
    assert (readiness.state, readiness.reason) == (state, reason)


def test_a_condition_without_reason_is_described_by_its_type() -> None:
    readiness = compute_readiness(_object(CUSTOM, {"conditions": [{"type": "Ready", "status": "False"}]}))
    assert readiness == progressing("Ready", "Ready is False")


@pytest.mark.parametrize("kind", ["ConfigMap", "apps/v1 Deployment", CUSTOM])
def test_a_requested_deletion_takes_precedence(kind: str) -> None:
    deleted = "2026-01-01T00:00:00Z"
    blocked = _object(kind, deletionTimestamp=deleted, finalizers=["example.com/a", "example.com/b"])
    assert compute_readiness(blocked) == terminating(
        "Finalizers", "waits for its finalizers: example.com/a, example.com/b"
    )
    assert compute_readiness(_object(kind, deletionTimestamp=deleted)) == terminating(
        "Deleted", f"deletion was requested at {deleted}"
    )


def test_a_terminating_namespace_reports_what_blocks_it() -> None:
    status = {"phase": "Terminating"} | _conditions(NamespaceContentRemaining="True", NamespaceDeletionFailure="False")
    readiness = compute_readiness(_object("Namespace", status, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert readiness == terminating("WhyNamespaceContentRemaining", "about NamespaceContentRemaining")


def test_no_kind_is_in_both_tables() -> None:
    assert not ALWAYS_READY & RULES_BY_KIND.keys()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["phase", "conditions", "replicas", "observedGeneration", "loadBalancer", "containerStatuses", "hard", "suspend"]
)
PART = st.dictionaries(FIELDS, JSON, max_size=4)


@given(
    group_kind=st.sampled_from([*RULES_BY_KIND, *ALWAYS_READY, ("example.com", "Widget")]),
    spec=PART | JSON,
    status=PART | JSON,
)
def test_objects_with_arbitrary_spec_and_status_have_a_readiness(
    group_kind: tuple[str, str], spec: Any, status: Any
) -> None:
    group, kind = group_kind
    manifest = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "spec": spec, "status": status}
    readiness = compute_readiness(manifest)
    assert readiness.state in State
    assert readiness.reason


def _ref(name: str) -> ObjectRef:
    return ObjectRef("", "ConfigMap", "shop", name)


def test_a_summary_has_the_worst_state_and_lists_the_worst_object_first() -> None:
    objects = {
        _ref("a"): ready("Exists"),
        _ref("b"): progressing("RollingOut", "1 of 2 available"),
        _ref("c"): terminating("Deleted"),
        _ref("d"): failed("Lost", "its volume is gone"),
        _ref("e"): unknown("NodeLost"),
    }
    assert summarise(objects) == failed(
        "Lost",
        "4 of 5 not ready: ConfigMap shop/d failed, Lost: its volume is gone; ConfigMap shop/e unknown, NodeLost; "
        "ConfigMap shop/c terminating, Deleted; ConfigMap shop/b progressing, RollingOut: 1 of 2 available",
    )


def test_a_summary_of_ready_objects_only_counts_them() -> None:
    assert summarise({_ref("a"): ready("Exists"), _ref("b"): ready("Exists")}) == ready("AllReady", "all 2 ready")
    assert summarise({}) == ready("Empty", "there are no objects")


def test_objects_that_do_not_fit_are_counted() -> None:
    objects = {_ref(f"c{number:03}"): progressing("Pending", "x" * 50) for number in range(200)}
    message = summarise(objects, max_characters=300).message
    assert message.startswith("200 of 200 not ready: ConfigMap shop/c000 progressing, Pending: xx")
    assert message.endswith(f"; and {200 - message.count('ConfigMap')} more")
    assert message.count("ConfigMap") == 2


@given(
    messages=st.lists(st.text(max_size=2000), min_size=1, max_size=30),
    limit=st.integers(min_value=100, max_value=2000),
)
def test_a_summary_never_exceeds_its_limit(messages: list[str], limit: int) -> None:
    objects: dict[ObjectRef, Readiness] = {
        _ref(f"c{number}"): failed("Broken", message) for number, message in enumerate(messages)
    }
    message = summarise(objects, max_characters=limit).message
    assert len(message) <= limit
    assert "ConfigMap shop/c0" in message
