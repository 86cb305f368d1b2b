"""Plugins written with the kit: typed requests, changes, rejections, and recorded calls."""

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError
from governor.sdk.hooks import (
    Container,
    ContainerChanges,
    ContainerRequest,
    Hook,
    Plugin,
    Pod,
    PodChanges,
    PodIdentity,
    PodRequest,
    PodState,
    Rejection,
    Resources,
)
from governor.sdk.hooks.messages import handle, handle_synchronize
from governor.sdk.hooks.template import create
from governor.sdk.hooks.testkit import Recorder, call, replay
from governor.wire.hooks.encoding import container_message, container_of, pod_message, pod_of
from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest
from governor.wire.hooks.points import decode_response
from governor.wire.hooks.synchronization_pb2 import PodState as PodStateMessage
from governor.wire.hooks.synchronization_pb2 import SynchronizeRequest

POD = Pod(PodIdentity("web", "u", "shop", 1), {"tier": "batch"}, {"a": "b"}, "/x", "runc", Resources(cpu_shares=7))
MAIN = Container("c", "main", 2, {"k": "v"}, Resources(cpu_quota=-1, hugepage_limits={"2Mi": 0}, unified={"a": "b"}))


class Batch(Plugin):
    """Changes containers of batch pods, rejects those of others, and remembers what exists."""

    def __init__(self) -> None:
        self.pods: list[PodState] = []

    def pre_create_container(self, request: ContainerRequest) -> ContainerChanges | None:
        if request.pod.labels.get("tier") != "batch":
            raise Rejection("only batch pods run here")
        return ContainerChanges({"by": "batch"}, Resources(cpu_shares=2), {"SEEN": request.environment.get("A", "")})

    def synchronize(self, pods: Sequence[PodState]) -> None:
        self.pods = list(pods)


class Mover(Plugin):
    def pre_run_pod_sandbox(self, request: PodRequest) -> PodChanges | None:
        return PodChanges(cgroup_parent=f"/batch{request.pod.cgroup_parent}")


def test_a_plugin_has_the_hooks_that_it_overrides() -> None:
    assert (Batch().hooks, Batch().synchronizes) == ((Hook.PRE_CREATE_CONTAINER,), True)
    assert (Mover().hooks, Mover().synchronizes) == ((Hook.PRE_RUN_POD_SANDBOX,), False)
    assert Plugin().hooks == ()


def test_a_container_is_changed() -> None:
    message = ContainerResourceHookRequest(pod_labels={"tier": "batch"}, container_envs={"A": "1"})
    raw = handle(Batch(), Hook.PRE_CREATE_CONTAINER, message.SerializeToString())
    response = decode_response(Hook.PRE_CREATE_CONTAINER, raw)
    assert response.container_resources.cpu_shares == 2  # type: ignore[union-attr]
    assert dict(response.container_envs) == {"SEEN": "1"}  # type: ignore[union-attr]


def test_a_pod_is_changed_and_an_empty_answer_changes_nothing() -> None:
    raw = handle(Mover(), Hook.PRE_RUN_POD_SANDBOX, pod_message(POD).SerializeToString())
    assert decode_response(Hook.PRE_RUN_POD_SANDBOX, raw).cgroup_parent == "/batch/x"  # type: ignore[union-attr]
    assert handle(Plugin(), Hook.POST_STOP_CONTAINER, b"") == b""


def test_a_plugin_learns_what_exists() -> None:
    plugin = Batch()
    state = PodStateMessage(sandbox_id="s", pod=pod_message(POD), containers=[container_message(MAIN)])
    handle_synchronize(plugin, SynchronizeRequest(pods=[state]).SerializeToString())
    assert plugin.pods == [PodState("s", POD, (MAIN,))]


def test_nouns_survive_the_protocol() -> None:
    assert pod_of(pod_message(POD)) == POD
    assert container_of(container_message(MAIN)) == MAIN


@given(st.binary(max_size=50))
def test_any_bytes_are_handled_or_rejected(message: bytes) -> None:
    try:
        response = handle(Mover(), Hook.PRE_RUN_POD_SANDBOX, message)
    except GovernorError as error:
        response, code = b"", error.code
    else:
        code = ""
    assert bool(response) is not bool(code)


def test_recorded_calls_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    recorder = Recorder(path)
    for labels in ({"tier": "batch"}, {}):
        message = ContainerResourceHookRequest(pod_labels=labels, container_meta={"name": "main"})
        recorder.add(Hook.PRE_CREATE_CONTAINER, message.SerializeToString())
    recorder.add(Hook.POST_STOP_CONTAINER, b"")

    first, second = replay(Batch(), path)

    assert path.stat().st_mode & 0o077 == 0
    assert isinstance(first.request, ContainerRequest)
    assert first.request.container.name == "main"
    assert first.changes == ContainerChanges({"by": "batch"}, Resources(cpu_shares=2), {"SEEN": ""})
    assert (second.changes, second.rejection) == (None, "only batch pods run here")


@pytest.mark.parametrize(
    "line", ["{", '{"hook": "x", "request": ""}', '{"hook": "PreCreateContainer", "request": "?"}']
)
def test_a_recording_that_cannot_be_read_is_rejected_with_its_line(line: str, tmp_path: Path) -> None:
    good = json.dumps({"hook": "PreCreateContainer", "request": base64.b64encode(b"").decode()})
    (tmp_path / "r.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(GovernorError, match=r"r\.jsonl:2: is not a recorded call"):
        replay(Mover(), tmp_path / "r.jsonl")


def test_a_rejection_is_an_answer() -> None:
    assert call(Batch(), Hook.PRE_CREATE_CONTAINER, ContainerRequest(Pod(), Container())).rejection


def test_the_tests_of_a_new_plugin_pass(tmp_path: Path) -> None:
    files = create("low-shares", tmp_path / "new")
    assert [each.name for each in files] == ["plugin.py", "test_plugin.py", "README.md"]
    assert "class LowShares(Plugin)" in files[0].read_text()
    assert len(files[0].read_text().splitlines()) < 28
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "-c", "/dev/null"],
        cwd=tmp_path / "new",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in run.stdout, run.stdout + run.stderr


def test_an_existing_directory_or_a_bad_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(GovernorError, match="exists"):
        create("p", tmp_path)
    with pytest.raises(GovernorError, match="is not a name of a plugin"):
        create("../x", tmp_path / "x")
