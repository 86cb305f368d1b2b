"""The agent's state in files: modes, corrupt files, and what older versions stored."""

from pathlib import Path

import pytest

from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.domain.reports import Instances, WorkloadRef
from governor.errors import GovernorError, Kind
from governor.wire.deliveries import SignedDelivery


def in_files(directory: Path) -> AgentState:
    return AgentState(FileBlobs(directory))


async def test_what_is_stored_is_read_back_and_files_are_private(tmp_path: Path) -> None:
    state, delivery = in_files(tmp_path), SignedDelivery("{}", "key", "signature")
    await state.save_newest(delivery)
    await state.save_trials({})
    assert await in_files(tmp_path).newest() == delivery
    assert (await state.membership(), await state.verified(), await state.trials()) == (None, None, {})
    assert {path.name for path in tmp_path.iterdir()} == {"newest.json", "trials.json"}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("content", [b"", b'{"payload": ', b"\xff", b"[]"])
async def test_a_corrupt_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "newest.json").write_bytes(content)
    with pytest.raises(GovernorError, match=r"newest\.json") as caught:
        await in_files(tmp_path).newest()
    assert (caught.value.kind, caught.value.code) == (Kind.PRECONDITION, "state-unreadable")


async def test_an_unreadable_file_is_an_error_and_not_an_empty_state(tmp_path: Path) -> None:
    (tmp_path / "membership.json").mkdir()
    with pytest.raises(GovernorError, match=r"cannot read .*membership\.json") as caught:
        await in_files(tmp_path).membership()
    assert caught.value.kind is Kind.PRECONDITION


async def test_the_trials_of_version_0_1_are_read(tmp_path: Path) -> None:
    state = in_files(tmp_path)
    evidence = '[{"source":"sidecar app","time":"2026-01-01T00:00:00Z","text":"broken"}]'
    resource = '{"kind":"Component","namespace":"default","name":"one"}'
    (tmp_path / "trials.json").write_text(
        '{"sha256:1":{"sequence":2,"attempt":1,"failed":true,"found":{'
        f'"resources":[{{"state":"failed","evidence":{evidence},"resource":{resource}}}],'
        f'"workloads":[{{"state":"failed","evidence":{evidence},"workload":"app"}}],"applied":true}}}}}}'
    )
    trial = (await state.trials())["sha256:1"]
    assert (trial.sequence, trial.failed, trial.incarnation, trial.found.applied) == (2, True, "", True)
    assert trial.found.workloads[0].workload == WorkloadRef("", "Sidecar", "app")
    assert trial.found.workloads[0].instances == Instances(1, 0, 1, 0)
    await state.save_trials({"sha256:1": trial})
    assert await state.trials() == {"sha256:1": trial}
