"""The frames of the linked renderer."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.reconciler.render import frames
from governor.reconciler.render.request import Capabilities, Layer, LookupCall, Request
from governor.values.secret import Secret

RESULT: dict[str, Any] = {
    "crds": [],
    "objects": [{"source": "a", "object": None}],
    "hooks": [],
    "unknownHooks": [],
    "lookups": [],
    "reads": {"kubeVersion": True, "allApiVersions": False, "apiVersions": ["v1"]},
    "recording": None,
}


def body(**frame: Any) -> bytes:
    return json.dumps(frame, separators=(",", ":")).encode()


@given(st.lists(st.text(), max_size=3), st.text(), st.none() | st.lists(st.text(), max_size=2))
def test_a_request_is_one_frame_with_everything_that_it_depends_on(
    layers: list[str], version: str, versions: list[str] | None
) -> None:
    values = tuple(Layer(Secret(each), is_sensitive=not each) for each in layers)
    capabilities = Capabilities(version, None if versions is None else tuple(versions))
    frame = frames.encode_request(Request(Path("/chart"), "sha256:0", "r", "n", values, capabilities))
    head, content = frame[: frames.HEAD_BYTES], json.loads(frame[frames.HEAD_BYTES :])
    assert frames.body_length(head) == len(frame) - frames.HEAD_BYTES
    assert [each["text"] for each in content["request"]["values"]] == layers
    assert content["request"]["kubeVersion"] == version
    assert content["request"]["apiVersions"] == versions


def test_a_recording_is_passed_as_it_is() -> None:
    recording = Secret('{"version":1,"calls":{"a":"b"}}')
    frame = frames.encode_request(Request(Path("/chart"), "sha256:0", "r", "n", recording=recording))
    assert json.loads(frame[frames.HEAD_BYTES :])["request"]["recording"] == {"version": 1, "calls": {"a": "b"}}
    rendered = frames.decode_result(body(type="rendered", rendered={**RESULT, "recording": {"version": 1}}))
    assert rendered.recording == Secret('{"version":1}')
    assert frames.decode_result(body(type="rendered", rendered=RESULT)).recording is None


def test_only_lookups_are_calls() -> None:
    call = {"apiVersion": "v1", "kind": "Pod", "namespace": "a", "name": "b"}
    assert frames.decode_call(body(type="lookup", lookup=call)) == LookupCall("v1", "Pod", "a", "b")
    assert frames.decode_call(body(type="rendered", rendered=RESULT)) is None


def test_frames_that_are_too_long_are_refused() -> None:
    with pytest.raises(GovernorError) as caught:
        frames.body_length(b"\xff\xff\xff\xff")
    assert caught.value.kind is Kind.INTERNAL
    large = Layer(Secret("x" * (frames.MAX_BYTES + 1)))
    with pytest.raises(GovernorError, match="make the values smaller"):
        frames.encode_request(Request(Path("/chart"), "sha256:0", "r", "n", (large,)))


@pytest.mark.parametrize("kind", ["invalid", "exhausted"])
def test_a_failure_has_the_kind_that_the_renderer_names(kind: str) -> None:
    with pytest.raises(GovernorError, match="because") as caught:
        frames.decode_result(body(type="failed", kind=kind, message="because"))
    assert caught.value.kind is Kind(kind)


@given(st.binary(max_size=40) | st.sampled_from([body(type="ready"), body(type="other"), b"{}", b"null"]))
def test_anything_else_is_an_internal_error(content: bytes) -> None:
    with pytest.raises(GovernorError) as caught:
        frames.decode_result(content)
    assert caught.value.kind is Kind.INTERNAL


@pytest.mark.parametrize("frame", [{"type": "ready", "protocol": 2}, {"type": "rendered", "rendered": RESULT}])
def test_a_renderer_of_another_protocol_is_refused(frame: dict[str, Any]) -> None:
    frames.check_ready(body(type="ready", protocol=frames.PROTOCOL, helm="v3.17.3"))
    with pytest.raises(GovernorError, match="does not speak protocol 1") as caught:
        frames.check_ready(body(**frame))
    assert caught.value.kind is Kind.PRECONDITION
