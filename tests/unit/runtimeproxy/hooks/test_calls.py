"""Which calls are hooked, and the hook request of each."""

import pytest

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.cri import cri_pb2 as cri
from governor.runtimeproxy.cri.messages import CALLS, KINDS, PLACES, SERVICES, CriCodec, CriMessage, pod_of, write
from governor.runtimeproxy.grpc.framing import wrap
from governor.runtimeproxy.hooks.calls import DEVICES, MOUNTS, Call
from governor.runtimeproxy.hooks.questions import Question, question_for
from governor.runtimeproxy.hooks.requests import Request
from governor.runtimeproxy.plugins.messages import QuestionEncoder
from governor.runtimeproxy.store.records import Sandbox
from governor.wire.hooks import hooks_pb2 as hooks
from governor.wire.hooks.encoding import pod_message
from governor.wire.hooks.points import Hook, decode_request
from governor.wire.hooks.workload import Container, Pod
from tests.unit.runtimeproxy.hooks.requests import (
    KUBELET,
    POD,
    VARIABLES,
    creation,
    recorded_container,
    sent_container,
)
from tests.unit.runtimeproxy.hooks.strategies import UNKNOWN, FixedRecords, begun, cri_request, sent


@pytest.mark.parametrize("service", SERVICES)
def test_d16_both_versions_of_the_service_are_hooked(service: str) -> None:
    assert {CALLS[f"/{service}/{call}"] for call in Call} == set(Call)
    assert len(CALLS) == len(SERVICES) * len(Call)


@pytest.mark.parametrize(
    "path",
    [
        "/runtime.v1.RuntimeService/Version",
        "/runtime.v1.RuntimeService/GetContainerEvents",
        "/runtime.v1.ImageService/RunPodSandbox",
        "/runtime.v2.RuntimeService/RunPodSandbox",
        "/runtime.v1.RuntimeService/RunPodSandbox/",
    ],
)
def test_other_calls_are_not_hooked(path: str) -> None:
    assert path not in CALLS


def test_every_hook_belongs_to_one_call_before_or_after_it() -> None:
    before = {call.shape.pre for call in Call} - {None}
    after = {call.shape.post for call in Call} - {None}
    assert before == {hook for hook in Hook if not hook.is_post}
    assert after == {hook for hook in Hook if hook.is_post}


def test_targets_of_changes_exist_in_hook_response_and_request() -> None:
    for call in Call:
        assert call.shape.fields == PLACES.get(call, {}).keys()
        for field, place in PLACES.get(call, {}).items():
            assert call.shape.pre is not None
            response = hooks.PodSandboxHookResponse if call.shape.pre.is_of_pod else hooks.ContainerResourceHookResponse
            assert field in response.DESCRIPTOR.fields_by_name or field in (MOUNTS, DEVICES)
            message = KINDS[call]()
            for step in place:
                assert step in message.DESCRIPTOR.fields_by_name
                message = getattr(message, step)


def test_a_request_is_read_from_its_body_and_written_back() -> None:
    request = cri.StopContainerRequest(container_id="c")
    request.MergeFromString(UNKNOWN)
    again = CriCodec().read(Call.STOP_CONTAINER, write(request))
    assert again.message == request
    assert write(again.message) == write(request)


@pytest.mark.parametrize("garbage", [b"\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xc3\x28"])
def test_a_body_that_cannot_be_decoded_is_rejected(garbage: bytes) -> None:
    with pytest.raises(GovernorError, match="StopContainer") as caught:
        CriCodec().read(Call.STOP_CONTAINER, wrap(garbage))
    assert caught.value.kind is Kind.INVALID


def test_applying_changes_copies_the_request() -> None:
    request = cri.StopContainerRequest(container_id="c")
    assert CriMessage(Call.STOP_CONTAINER, request).with_changes(()) is not request


def test_the_hook_request_of_a_pod_has_kubelets_values() -> None:
    config = cri.PodSandboxConfig()
    config.CopyFrom(POD)
    config.linux.overhead.cpu_quota = 5
    config.linux.resources.cpu_shares = 6
    request = cri.RunPodSandboxRequest(config=config, runtime_handler="kata")
    assert sent(begun(Call.RUN_POD_SANDBOX, request, FixedRecords())) == (
        hooks.PodSandboxHookRequest(
            pod_meta={"name": "web", "uid": "u1", "namespace": "shop", "attempt": 1},
            runtime_handler="kata",
            labels={"app": "web"},
            annotations={"note": "x"},
            cgroup_parent="/kubepods/pod1",
            overhead={"cpu_quota": 5},
            resources={"cpu_shares": 6},
        )
    )


def test_the_hook_request_of_a_new_container_includes_its_pod() -> None:
    sandbox = Sandbox("s", pod_of(cri.PodSandboxConfig(labels={"changed": "by a plugin"}, linux={"resources": {}})))
    request = cri_request(creation(KUBELET, VARIABLES))
    assert sent(
        begun(Call.CREATE_CONTAINER, request, FixedRecords({"s": sandbox}))
    ) == hooks.ContainerResourceHookRequest(
        container_meta={"name": "app"},
        container_resources=hooks.LinuxContainerResources(**KUBELET),
        container_envs={"A": "2", "B": "3", "C": ""},
        pod_labels={"changed": "by a plugin"},
        pod_resources={},
        pod_cgroup_parent="/kubepods/pod1",
    )


def test_d2_a_container_in_an_unknown_sandbox_is_described_by_its_own_request() -> None:
    hook_request = sent_container(creation(KUBELET))
    assert (hook_request.pod_meta.name, dict(hook_request.pod_labels)) == ("web", {"app": "web"})
    assert hook_request.pod_cgroup_parent == "/kubepods/pod1"


def test_a_container_that_starts_or_stops_is_described_by_its_record() -> None:
    memory = recorded_container()
    started = sent(begun(Call.START_CONTAINER, cri.StartContainerRequest(container_id="c"), memory))
    assert sent(begun(Call.STOP_CONTAINER, cri.StopContainerRequest(container_id="c"), memory)) == started
    assert started == hooks.ContainerResourceHookRequest(
        pod_meta={"name": "web", "uid": "u1", "namespace": "shop", "attempt": 1},
        container_meta={"name": "app", "id": "c"},
        container_resources=hooks.LinuxContainerResources(**KUBELET),
        container_envs={"A": "2", "B": "3", "C": ""},
        pod_labels={"app": "web"},
        pod_annotations={"note": "x"},
        pod_cgroup_parent="/kubepods/pod1",
    )


def test_a_pod_that_stops_is_described_by_its_record() -> None:
    request = cri.StopPodSandboxRequest(pod_sandbox_id="s")
    assert sent(begun(Call.STOP_POD_SANDBOX, request, recorded_container())) == pod_message(pod_of(POD, "runc"))


@pytest.mark.parametrize(
    "request_",
    [
        Request(Call.CREATE_CONTAINER, sandbox_id="unrecorded"),
        Request(Call.START_CONTAINER, container_id="unrecorded"),
        Request(Call.STOP_CONTAINER, container_id="unrecorded"),
        Request(Call.UPDATE_CONTAINER_RESOURCES, container_id="unrecorded"),
        Request(Call.STOP_POD_SANDBOX, sandbox_id="unrecorded"),
    ],
)
def test_d15_an_unknown_sandbox_or_container_is_not_found(request_: Request) -> None:
    with pytest.raises(GovernorError, match="unrecorded") as caught:
        question_for(request_, FixedRecords())
    assert caught.value.kind is Kind.NOT_FOUND
    assert caught.value.code in ("unknown-sandbox", "unknown-container")


def test_variables_are_remembered_only_for_plugins_that_ask_for_it() -> None:
    question = question_for(Request(Call.START_CONTAINER, container_id="c"), recorded_container())
    encoder = QuestionEncoder()
    remembering = decode_request(Hook.PRE_START_CONTAINER, encoder.encode(question, remembers_environment=True))
    other = decode_request(Hook.PRE_START_CONTAINER, encoder.encode(question))
    assert isinstance(remembering, hooks.ContainerResourceHookRequest)
    assert isinstance(other, hooks.ContainerResourceHookRequest)
    assert dict(remembering.container_envs) == {"A": "2", "B": "3", "C": ""}
    assert dict(other.container_envs) == {}
    remembering.ClearField("container_envs")
    assert remembering == other


def test_the_pod_of_many_questions_is_encoded_once() -> None:
    encoder, records = QuestionEncoder(), recorded_container()
    question = question_for(Request(Call.START_CONTAINER, container_id="c"), records)
    first = encoder.encode(question)
    for number in range(1000):
        encoder.encode(Question(Pod(labels={"number": str(number)}), Container()))
    assert encoder.encode(question) == first
    assert len(encoder) <= 256
