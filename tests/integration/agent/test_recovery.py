"""Restart of an agent, with and without a server: real files, real sidecars."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from governor.agent.platforms.local.directory import ResourceDirectory
from governor.agent.platforms.local.files import resource_file
from governor.agent.platforms.local.storage import Intent, ProcessRecord, SidecarRecord
from governor.domain.reports import acknowledged
from governor.errors import GovernorError, Kind
from governor.process.child import detached
from governor.process.child.child import same_process
from governor.process.files import stage
from testbed.waiting import until
from tests.integration.agent.bed import component, resource_report, running_agent


async def test_an_agent_started_without_its_server_applies_the_stored_delivery(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as first:
        await first.deliver(component("one", "state.in-memory"))
    (first.resources / "component.one.yaml").unlink()

    async with running_agent(tmp_path, daprd_binary) as second:
        report = await second.final_report(1)

        assert acknowledged(report)
        assert (second.resources / "component.one.yaml").exists()
        assert (await second.get("/v1.0/state/one/key"))[0] == 204
        assert second.sidecar.ports == first.sidecar.ports


async def test_a_change_interrupted_between_two_files_is_resumed(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as first:
        await first.deliver(component("old", "state.in-memory"))
    # As after a kill: the journal is stored, one of two files is written, nothing is removed yet.
    signed = first.sign([component("one", "state.in-memory"), component("two", "state.in-memory")])
    await first.state.save_newest(signed)
    names = ["resources/component.one.yaml", "resources/component.two.yaml"]
    intent = Intent(2, tuple(names), ("resources/component.old.yaml",))
    first.storage.save_journal(first.storage.journal().begin(intent))
    (first.resources / "component.one.yaml").write_text("half of a file that the agent began to w")

    async with running_agent(tmp_path, daprd_binary) as second:
        assert acknowledged(await second.final_report(2))

        assert sorted(path.name for path in second.resources.iterdir()) == ["component.one.yaml", "component.two.yaml"]
        journal = second.storage.journal()
        assert (sorted(journal.owned), journal.intent) == (names, None)


async def test_a_process_from_before_an_interrupted_change_is_no_fresh_proof_of_it(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary, detach_sidecars=True) as first:
        await first.deliver(component("one", "state.in-memory"))
        process = first.sidecar.process
    # As after a kill: everything is written, but the journal is not completed.
    changed = component("one", "state.in-memory", note="new")
    file = resource_file(changed, "default")
    await first.state.save_newest(first.sign([changed]))
    first.storage.save_journal(first.storage.journal().begin(Intent(2, (file.key,), ())))
    (first.resources / "component.one.yaml").write_bytes(file.content)

    async with running_agent(tmp_path, daprd_binary) as second:
        report = await second.final_report(2)

        assert process is not None
        assert acknowledged(report)
        assert f"process {process.pid} started" not in resource_report(report, "one").all_evidence[-1].text


async def test_a_process_from_before_a_write_with_an_error_is_no_fresh_proof_of_it(
    tmp_path: Path, daprd_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("one", "state.in-memory"))
        process, apply = bed.sidecar.process, ResourceDirectory.apply

        def apply_with_error(directory: ResourceDirectory, *args: Any) -> None:
            monkeypatch.setattr(ResourceDirectory, "apply", apply)
            apply(directory, *args)
            raise GovernorError(Kind.EXHAUSTED, "disk-full", "no space left")

        monkeypatch.setattr(ResourceDirectory, "apply", apply_with_error)
        await bed.inbox.accept(bed.sign([component("one", "state.in-memory", note="new")]), bed.membership)
        report = await bed.wait_for_report(lambda it: it.sequence == 2 and acknowledged(it))

        assert process is not None
        assert f"process {process.pid} started" not in resource_report(report, "one").all_evidence[-1].text


async def test_the_sidecar_of_a_killed_agent_is_stopped_before_a_new_one_starts(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as first:
        await first.deliver(component("one", "state.in-memory"))
    left = await detached.start(["sleep", "1000"], env={"PATH": os.environ["PATH"]}, log_file=tmp_path / "log")
    left.release()
    record = first.storage.sidecar("app")
    assert record is not None
    first.storage.save_sidecar("app", SidecarRecord(record.ports, ProcessRecord(left.pid, left.start_time)))

    async with running_agent(tmp_path, daprd_binary) as second:
        await second.final_report(1)

        assert not same_process(left.pid, left.start_time)


async def test_a_sidecar_that_died_is_restarted_and_verified_again(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(component("one", "state.in-memory"))
        process = bed.sidecar.process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)

        async def again() -> bool:
            newest = bed.outbox.newest
            return newest is not None and newest.n > first.n and acknowledged(newest)

        await until(again)
        newest = bed.outbox.newest
        assert newest is not None
        assert bed.sidecar.starts == 2
        assert (
            resource_report(newest, "one").all_evidence[-1].time > resource_report(first, "one").all_evidence[-1].time
        )


async def test_temporary_files_of_a_killed_agent_are_removed_and_foreign_ones_are_not(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as first:
        await first.deliver(component("one", "state.in-memory"))
    state = first.storage.directory
    for place in (first.resources / "component.one.yaml", state / "newest.json", state / "sidecars" / "app.json"):
        stage(place, b"half of a secr")
    foreign = first.resources / ".mine.tmp"
    foreign.write_text("foreign")

    async with running_agent(tmp_path, daprd_binary) as second:
        assert acknowledged(await second.final_report(1))

        async def is_swept() -> bool:  # the second agent has temporary files too, for a moment
            left = [path.name for place in (first.resources, state) for path in place.rglob("*.tmp")]
            return left == [".mine.tmp"]

        await until(is_swept)
