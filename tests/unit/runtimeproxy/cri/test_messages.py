"""The CRI subset has CRI's field numbers, keeps unknown fields, and can share a process with the full CRI."""

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import Message

from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.cri.messages import CriCodec
from governor.runtimeproxy.grpc.framing import wrap
from governor.runtimeproxy.hooks.calls import Call
from tests.unit.runtimeproxy.hooks.strategies import UNKNOWN, submessages

NUMBERS = {
    "RunPodSandboxRequest": {"config": 1, "runtime_handler": 2},
    "RunPodSandboxResponse": {"pod_sandbox_id": 1},
    "PodSandboxConfig": {"metadata": 1, "labels": 6, "annotations": 7, "linux": 8},
    "PodSandboxMetadata": {"name": 1, "uid": 2, "namespace": 3, "attempt": 4},
    "LinuxPodSandboxConfig": {"cgroup_parent": 1, "overhead": 4, "resources": 5},
    "LinuxContainerResources": {
        "cpu_period": 1,
        "cpu_quota": 2,
        "cpu_shares": 3,
        "memory_limit_in_bytes": 4,
        "oom_score_adj": 5,
        "cpuset_cpus": 6,
        "cpuset_mems": 7,
        "hugepage_limits": 8,
        "unified": 9,
        "memory_swap_limit_in_bytes": 10,
    },
    "HugepageLimit": {"page_size": 1, "limit": 2},
    "StopPodSandboxRequest": {"pod_sandbox_id": 1},
    "RemovePodSandboxRequest": {"pod_sandbox_id": 1},
    "UpdatePodSandboxResourcesRequest": {"pod_sandbox_id": 1, "overhead": 2, "resources": 3},
    "CreateContainerRequest": {"pod_sandbox_id": 1, "config": 2, "sandbox_config": 3},
    "CreateContainerResponse": {"container_id": 1},
    "ContainerConfig": {
        "metadata": 1,
        "envs": 6,
        "mounts": 7,
        "devices": 8,
        "labels": 9,
        "annotations": 10,
        "linux": 15,
    },
    "Mount": {"container_path": 1, "host_path": 2, "readonly": 3},
    "Device": {"container_path": 1, "host_path": 2, "permissions": 3},
    "ContainerMetadata": {"name": 1, "attempt": 2},
    "KeyValue": {"key": 1, "value": 2},
    "LinuxContainerConfig": {"resources": 1},
    "StartContainerRequest": {"container_id": 1},
    "StopContainerRequest": {"container_id": 1},
    "StopContainerResponse": {},
    "RemoveContainerRequest": {"container_id": 1},
    "UpdateContainerResourcesRequest": {"container_id": 1, "linux": 2, "annotations": 4},
    "ListPodSandboxRequest": {},
    "ListPodSandboxResponse": {"items": 1},
    "PodSandbox": {"id": 1, "metadata": 2, "state": 3, "labels": 5, "annotations": 6, "runtime_handler": 7},
    "PodSandboxStatusRequest": {"pod_sandbox_id": 1, "verbose": 2},
    "PodSandboxStatusResponse": {"status": 1, "info": 2},
    "PodSandboxStatus": {"id": 1, "metadata": 2, "state": 3, "labels": 7, "annotations": 8, "runtime_handler": 9},
    "ListContainersRequest": {"filter": 1},
    "ContainerFilter": {"id": 1},
    "ListContainersResponse": {"containers": 1},
    "Container": {"id": 1, "pod_sandbox_id": 2, "metadata": 3, "state": 6, "labels": 8, "annotations": 9},
    "ContainerStatusRequest": {"container_id": 1, "verbose": 2},
    "ContainerStatusResponse": {"status": 1, "info": 2},
    "ContainerStatus": {"id": 1, "resources": 16},
    "ContainerResources": {"linux": 1},
    "RequestVariables": {"container_envs": 9},
    "ResponseVariables": {"container_envs": 4},
    "VersionRequest": {"version": 1},
    "VersionResponse": {"runtime_name": 2, "runtime_version": 3, "runtime_api_version": 4},
}


def test_messages_have_the_numbers_of_cri() -> None:
    messages = cri.DESCRIPTOR.message_types_by_name
    assert {name: {field.name: field.number for field in each.fields} for name, each in messages.items()} == NUMBERS


def test_full_cri_stubs_can_be_loaded_into_the_same_process() -> None:
    assert cri.DESCRIPTOR.package == "governor.cri.v1"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(cri.DESCRIPTOR.serialized_pb)
    for package in ("runtime.v1", "runtime.v1alpha2"):
        theirs = descriptor_pb2.FileDescriptorProto(name=f"{package}/api.proto", package=package)
        for name in NUMBERS:
            theirs.message_type.add(name=name)
        pool.AddSerializedFile(theirs.SerializeToString())
        assert pool.FindMessageTypeByName(f"{package}.RunPodSandboxRequest").file.package == package


def with_unknown_fields(message: Message) -> Message:
    for each in submessages(message):
        each.MergeFromString(UNKNOWN)
    return message


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        (
            Call.RUN_POD_SANDBOX,
            cri.RunPodSandboxRequest(
                config={"metadata": {"name": "a"}, "linux": {"resources": {"hugepage_limits": [{"page_size": "2Mi"}]}}}
            ),
        ),
        (
            Call.CREATE_CONTAINER,
            cri.CreateContainerRequest(
                config={"envs": [b"\n\x01a\x12\x01\xff"], "linux": {"resources": {}}}, sandbox_config={}
            ),
        ),
        (Call.UPDATE_CONTAINER_RESOURCES, cri.UpdateContainerResourcesRequest(container_id="c", linux={})),
    ],
)
def test_fields_that_later_versions_add_are_kept_at_every_depth(call: Call, request_: Message) -> None:
    sent = with_unknown_fields(request_).SerializeToString(deterministic=True)
    body = CriCodec().read(call, wrap(sent)).edited(())
    assert body == wrap(sent)
    assert body.count(b"later") == len(submessages(request_)) > 1
