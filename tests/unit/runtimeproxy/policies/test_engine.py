"""Which pods and containers policies match, and what they change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.changes import ConflictPolicy, Difference
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.policies.engine import qos_class
from governor.runtimeproxy.policies.policy import QosClass
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import Container, Pod, PodIdentity
from tests.unit.runtimeproxy.hooks.requests import KUBELET, change_texts, creation, resources_of, update
from tests.unit.runtimeproxy.hooks.strategies import UNKNOWN, FixedRecords, begun, create_requests, result
from tests.unit.runtimeproxy.policies.documents import policy

POD = Pod(
    PodIdentity("web-1", "u", "shop"),
    labels={"tier": "batch"},
    annotations={"note": "x"},
    cgroup_parent="/kubepods/besteffort/podu",
    runtime_handler="kata",
)
MAIN = Question(POD, Container("c", "main"))


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        ("/kubepods/besteffort/pod1", QosClass.BEST_EFFORT),
        ("/kubepods/burstable/pod1", QosClass.BURSTABLE),
        ("/kubepods/pod1", QosClass.GUARANTEED),
        ("kubepods-besteffort-pod1.slice", QosClass.BEST_EFFORT),
        ("/kubelet/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice", QosClass.BURSTABLE),
        ("kubepods-pod1.slice", QosClass.GUARANTEED),
        ("/system.slice", None),
        ("", None),
    ],
)
def test_the_qos_class_is_derived_from_kubelets_cgroup(parent: str, expected: QosClass | None) -> None:
    assert qos_class(Pod(cgroup_parent=parent)) is expected


@pytest.mark.parametrize(
    ("match", "why"),
    [
        ("{}", ""),
        ("{namespaces: [shop, other], matchLabels: {tier: batch}, annotations: {note: x}}", ""),
        ("{qosClasses: [Burstable, BestEffort], runtimeHandlers: [kata]}", ""),
        ("{containers: [main]}", ""),
        ("{namespaces: [other]}", "namespace must be one of other but is 'shop'"),
        ("{matchLabels: {tier: web}}", "label tier must be 'web' but is 'batch'"),
        ("{matchExpressions: [{key: x, operator: Exists}]}", "label x must be Exists but is not set"),
        ("{annotations: {note: y}}", "annotation note must be 'y' but is 'x'"),
        ("{qosClasses: [Guaranteed]}", "QoS class must be one of Guaranteed but is BestEffort"),
        ("{runtimeHandlers: [runc]}", "runtime handler must be one of runc but is 'kata'"),
    ],
)
def test_every_condition_must_hold(match: str, why: str) -> None:
    found = policy(f"{{match: {match}, container: {{set: {{cpuShares: 2}}}}}}")
    assert (found.selects(MAIN), found.mismatch(MAIN)) == (not why, why)


def test_a_container_name_selects_containers_of_a_pod() -> None:
    found = policy("{match: {containers: [main]}, pod: {set: {cpuShares: 3}}, container: {set: {cpuShares: 2}}}")
    assert found.selects(MAIN)
    assert not found.selects(Question(POD, Container("d", "sidecar")))
    assert found.selects(Question(POD))


def created(spec: str, *variables: tuple[str, bytes], **resources: object) -> list[str]:
    """Return the changes of a container that is created."""
    merged = creation(resources or None, list(variables))
    return change_texts(merged.add("p", changes(spec, merged.question)))


def changes(spec: str, asked: Question, hook: Hook = Hook.PRE_CREATE_CONTAINER) -> list[Difference]:
    return list(policy(spec).changes(hook, asked, asked, b""))


def test_values_are_set_once() -> None:
    spec = "{container: {set: {cpuShares: 2, cpusetCpus: '0-1', oomScoreAdj: 0, annotations: {a: b}}}}"
    assert created(spec, **KUBELET) == [
        "p changed container_annotations.a from None to 'b'",
        "p changed container_resources.cpu_shares from 512 to 2",
        "p changed container_resources.cpuset_cpus from '0-3' to '0-1'",
        "p changed container_resources.oom_score_adj from 900 to 0",
    ]
    assert created("{container: {set: {cpuShares: 512, oomScoreAdj: 900}}}", **KUBELET) == []


def test_what_is_specified_is_scaled_and_what_is_unlimited_is_not() -> None:
    spec = "{container: {scale: {cpuShares: 0.5, cpuQuota: 2, memoryLimitInBytes: 0.5}}}"
    assert created(spec, cpu_shares=512, cpu_quota=-1) == ["p changed container_resources.cpu_shares from 512 to 256"]
    assert created("{container: {scale: {cpuShares: 0.001}}}", cpu_shares=512) == [
        "p changed container_resources.cpu_shares from 512 to 2"
    ]


def test_fields_and_entries_are_cleared() -> None:
    spec = "{container: {clear: [cpusetCpus, cpuQuota, oomScoreAdj, unified/memory.oom.group, hugepageLimits/1Gi]}}"
    merged = creation(KUBELET)
    end = merged.add("p", changes(spec, merged.question))
    assert change_texts(end) == [
        "p changed container_resources.cpu_quota from 50000 to 0",
        "p changed container_resources.cpuset_cpus from '0-3' to ''",
        'p changed container_resources.hugepage_limits["1Gi"] from 7 to None',
        "p changed container_resources.oom_score_adj from 900 to 0",
        "p changed container_resources.unified[\"memory.oom.group\"] from '1' to None",
    ]
    left = resources_of(end)
    assert (left.cpuset_cpus, left.cpu_quota, dict(left.unified)) == ("", 0, {})
    assert [each.page_size for each in left.hugepage_limits] == ["2Mi"]


def test_variables_are_set_and_cleared_and_never_shown() -> None:
    spec = "{container: {set: {environment: {MODE: batch}}, clear: [environment/TOKEN, environment/ABSENT]}}"
    assert created(spec, ("TOKEN", b"secret"), ("A", b"1")) == [
        "p changed container_envs.MODE from None to ***",
        "p changed container_envs.TOKEN from *** to None",
    ]


def test_mounts_and_devices_are_set_and_cleared() -> None:
    request = cri.CreateContainerRequest(pod_sandbox_id="s", sandbox_config={})
    request.config.mounts.add(container_path="/data", host_path="/srv").MergeFromString(UNKNOWN)
    request.config.devices.add(container_path="/dev/a", host_path="/dev/null", permissions="r")
    merged = begun(Call.CREATE_CONTAINER, request, FixedRecords())
    mounts = "[{hostPath: /srv, containerPath: /data, readOnly: true}, {hostPath: /tmp/x, containerPath: /x}]"
    devices = "[{hostPath: /dev/zero, containerPath: /dev/b, permissions: rw}]"
    spec = f"{{container: {{set: {{mounts: {mounts}, devices: {devices}}}, clear: [devices//dev/a, mounts//absent]}}}}"
    end = merged.add("p", changes(spec, merged.question))
    assert change_texts(end) == [
        "p changed container_devices[\"/dev/a\"] from '/dev/null:r' to None",
        "p changed container_devices[\"/dev/b\"] from None to '/dev/zero:rw'",
        "p changed container_mounts[\"/data\"] from '/srv' to '/srv:ro'",
        "p changed container_mounts[\"/x\"] from None to '/tmp/x'",
    ]
    edited = result(end)
    assert isinstance(edited, cri.CreateContainerRequest)
    config = edited.config
    assert [(each.container_path, each.host_path, each.readonly) for each in config.mounts] == [
        ("/data", "/srv", True),
        ("/x", "/tmp/x", False),
    ]
    assert UNKNOWN in config.mounts[0].SerializeToString()
    assert [(each.container_path, each.host_path, each.permissions) for each in config.devices] == [
        ("/dev/b", "/dev/zero", "rw")
    ]
    assert changes(spec, end.question) == []


def test_a_pod_is_changed_when_it_starts() -> None:
    spec = "{pod: {set: {labels: {a: b}, cgroupParent: /batch, cpuShares: 2}, clear: [annotations/note, labels/x]}}"
    asked = Question(POD)
    assert changes(spec, asked, Hook.PRE_RUN_POD_SANDBOX) == [
        (("labels", "a"), None, "b"),
        (("cgroup_parent",), "/kubepods/besteffort/podu", "/batch"),
        (("resources", "cpu_shares"), 0, 2),
        (("annotations", "note"), "x", None),
    ]


def test_an_update_is_changed_like_a_creation_and_scaled_only_where_it_specifies() -> None:
    spec = "{container: {set: {oomScoreAdj: 5}, scale: {cpuShares: 0.5, cpuQuota: 0.5}, clear: [cpusetCpus]}}"
    merged = update(linux={"cpu_quota": 80000})
    end = merged.add("p", changes(spec, merged.question, Hook.PRE_UPDATE_CONTAINER_RESOURCES))
    assert change_texts(end) == [
        "p changed container_resources.cpu_quota from 80000 to 40000",
        "p changed container_resources.oom_score_adj from 900 to 5",
    ]


def test_an_update_changes_neither_variables_nor_the_cgroup() -> None:
    spec = "{container: {set: {environment: {A: b}, cgroupParent: /x}}}"
    merged = update(linux={"cpu_quota": 80000})
    assert changes(spec, merged.question, Hook.PRE_UPDATE_CONTAINER_RESOURCES) == []


def test_observed_changes_are_those_that_enforcing_makes_and_later_policies_do_not_see_them() -> None:
    spec = "{container: {set: {cpuShares: 2}}}"
    merged = creation(KUBELET)
    observed = merged.observe("p", changes(spec, merged.question))
    enforced = merged.add("p", changes(spec, merged.question))
    assert observed.observed == enforced.changes
    assert (observed.changes, observed.question) == ((), merged.question)


def test_an_observed_change_that_an_earlier_plugin_prevents_is_not_shown() -> None:
    merged = creation(KUBELET).add("first", [(("container_resources", "cpu_shares"), 512, 7)])
    spec = "{container: {set: {cpuShares: 2}}}"
    assert merged.observe("p", changes(spec, merged.question), ConflictPolicy.FIRST_WINS).observed == ()


@given(request=create_requests(), shares=st.integers(2, 1000))
def test_a_policy_applied_twice_changes_nothing_more(request: object, shares: int) -> None:
    spec = f"{{container: {{set: {{cpuShares: {shares}, environment: {{A: b}}}}, clear: [cpusetCpus]}}}}"
    merged = begun(Call.CREATE_CONTAINER, request, FixedRecords())  # type: ignore[arg-type]
    end = merged.add("p", changes(spec, merged.question))
    assert changes(spec, end.question) == []
    again = begun(Call.CREATE_CONTAINER, result(end), FixedRecords())
    assert changes(spec, again.question) == []
