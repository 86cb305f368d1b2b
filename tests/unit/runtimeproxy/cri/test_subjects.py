"""The pod and container that a call concerns."""

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.cri.messages import KINDS
from governor.runtimeproxy.cri.subjects import decode_subject
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.ops.control import Subject
from tests.unit.runtimeproxy.pods import CONFIG, CREATE, MAIN, PodRecords

POD = Subject("shop", "web", "u-1")
IN_SANDBOX = Subject("shop", "web", "u-1", "s1")


@pytest.mark.parametrize(
    ("method", "message", "subject"),
    [
        ("RunPodSandbox", cri_pb2.RunPodSandboxRequest(config=CONFIG), POD),
        ("CreateContainer", CREATE, Subject("shop", "web", "u-1", "s1", "main")),
        ("StopPodSandbox", cri_pb2.StopPodSandboxRequest(pod_sandbox_id="s1"), IN_SANDBOX),
        ("PodSandboxStatus", cri_pb2.PodSandboxStatusRequest(pod_sandbox_id="s1", verbose=True), IN_SANDBOX),
        ("PortForward", cri_pb2.StopPodSandboxRequest(pod_sandbox_id="s2"), Subject(sandbox_id="s2")),
        ("StartContainer", cri_pb2.StartContainerRequest(container_id="c1"), MAIN),
        ("ContainerStatus", cri_pb2.ContainerStatusRequest(container_id="c1", verbose=True), MAIN),
        ("ExecSync", cri_pb2.StartContainerRequest(container_id="c2"), Subject(container_id="c2")),
        ("Version", cri_pb2.VersionRequest(version="v1"), Subject()),
        ("ListContainers", cri_pb2.ListContainersRequest(), Subject()),
    ],
)
def test_the_subject_comes_from_the_message_and_the_records(method: str, message: Message, subject: Subject) -> None:
    assert decode_subject(method, message.SerializeToString(), PodRecords()) == subject


def test_the_pod_of_a_new_container_comes_from_kubelets_request() -> None:
    request = cri_pb2.CreateContainerRequest(pod_sandbox_id="unknown", sandbox_config=CONFIG)
    assert decode_subject("CreateContainer", request.SerializeToString(), PodRecords()) == Subject(
        "shop", "web", "u-1", "unknown"
    )


@pytest.mark.parametrize("call", list(Call))
def test_every_held_call_has_a_subject(call: Call) -> None:
    request = KINDS[call]()
    for field in ("pod_sandbox_id", "container_id"):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, "s1" if field == "pod_sandbox_id" else "c1")
    assert decode_subject(call, request.SerializeToString(), PodRecords()) != Subject() or call is Call.RUN_POD_SANDBOX


@given(method=st.sampled_from([*Call, "ContainerStatus", "Version", "Anything"]), message=st.binary(max_size=100))
def test_any_bytes_have_a_subject(method: str, message: bytes) -> None:
    assert isinstance(decode_subject(method, message, PodRecords()), Subject)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("web", True),
        ("shop/web", True),
        ("u-1", True),
        ("s1", True),
        ("s", True),
        ("we", False),
        ("/", False),
        ("", False),
    ],
)
def test_a_subject_matches_name_uid_and_sandbox_id_prefix(text: str, matches: bool) -> None:
    assert MAIN.matches(text) is matches
    assert not Subject().matches(text)
