"""The hook protocol is compatible with koord-runtime-proxy on the wire."""

import pytest

from governor.errors import GovernorError, Kind
from governor.wire.hooks import hooks_pb2
from governor.wire.hooks.points import Hook, decode_request, decode_response

SERVICE = hooks_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"]
RESOURCES = {
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
}
NUMBERS = {
    "PodSandboxMetadata": {"name": 1, "uid": 2, "namespace": 3, "attempt": 4},
    "ContainerMetadata": {"name": 1, "attempt": 2, "id": 3},
    "HugepageLimit": {"page_size": 1, "limit": 2},
    "LinuxContainerResources": RESOURCES,
    "PodSandboxHookRequest": {
        "pod_meta": 1,
        "runtime_handler": 2,
        "labels": 3,
        "annotations": 4,
        "cgroup_parent": 5,
        "overhead": 6,
        "resources": 7,
    },
    "PodSandboxHookResponse": {"labels": 1, "annotations": 2, "cgroup_parent": 3, "resources": 4},
    "ContainerResourceHookRequest": {
        "pod_meta": 1,
        "container_meta": 2,
        "container_annotations": 3,
        "container_resources": 4,
        "pod_resources": 5,
        "pod_annotations": 6,
        "pod_labels": 7,
        "pod_cgroup_parent": 8,
        "container_envs": 9,
    },
    "ContainerResourceHookResponse": {
        "container_annotations": 1,
        "container_resources": 2,
        "pod_cgroup_parent": 3,
        "container_envs": 4,
    },
}


def test_messages_have_the_numbers_of_the_protocol() -> None:
    messages = hooks_pb2.DESCRIPTOR.message_types_by_name
    numbers = {name: {field.name: field.number for field in each.fields} for name, each in messages.items()}
    assert numbers == NUMBERS


def test_every_hook_is_a_method_of_the_service_and_every_method_a_hook() -> None:
    assert SERVICE.full_name == "runtime.v1alpha1.RuntimeHookService"
    assert {hook.path for hook in Hook} == {f"/{SERVICE.full_name}/{method.name}" for method in SERVICE.methods}
    assert len(Hook) == 7


@pytest.mark.parametrize("hook", Hook)
def test_messages_have_the_types_that_the_service_declares(hook: Hook) -> None:
    method = SERVICE.methods_by_name[f"{hook}Hook"]
    assert decode_request(hook, b"").DESCRIPTOR is method.input_type
    assert decode_response(hook, b"").DESCRIPTOR is method.output_type


def test_post_hooks_are_distinguished_from_pre_hooks() -> None:
    after = {hook for hook in Hook if hook.is_post}
    assert after == {Hook.POST_STOP_POD_SANDBOX, Hook.POST_START_CONTAINER, Hook.POST_STOP_CONTAINER}


@pytest.mark.parametrize("garbage", [b"\xff", b"\x0a\xff", b"\x1a\x02\xc3\x28", b"not protobuf"])
@pytest.mark.parametrize("decode", [decode_request, decode_response])
def test_garbage_is_rejected_with_the_name_of_its_hook(decode: object, garbage: bytes) -> None:
    assert callable(decode)
    with pytest.raises(GovernorError, match="PreCreateContainer") as caught:
        decode(Hook.PRE_CREATE_CONTAINER, garbage)
    assert caught.value.kind is Kind.INVALID
