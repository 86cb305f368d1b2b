"""Drift after a change was verified, on a real sidecar: found at once, reported with file and field, and repaired."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from governor.agent.platforms.local.platform import LocalPlatform
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.domain.conditions import Condition, Progress, verified
from governor.domain.documents import Drift
from governor.domain.reports import Cause, Report, State, acknowledged, overall
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.agent.bed import WINDOW_S, AgentBed, component, resource_report, running_agent
from tests.integration.agent.test_server import DECIDED_WITHIN_S, AgentProgram
from tests.integration.server.bed import profile, running, runtime

ONE = component("one", "state.in-memory", note="delivered", accessKey="s3cret-of-one")
TWO = component("two", "state.in-memory")
RESYNC_S = 0.2
FIELD = "spec.metadata[note].value"


def file_of(bed: AgentBed, name: str) -> Path:
    return bed.resources / f"component.{name}.yaml"


def edit(file: Path, old: str = "delivered", new: str = "edited") -> None:
    """Replace a text in a file as an editor does: by another file."""
    copy = file.with_name("edited.tmp")
    copy.write_text(file.read_text().replace(old, new))
    copy.replace(file)


class Reports:
    """Every report that the agent made, in order."""

    def __init__(self, bed: AgentBed) -> None:
        self.all: list[Report] = []
        put = bed.outbox.put

        def recorded(delivery: Delivery, found: Findings) -> bool:
            is_new = put(delivery, found)
            if is_new and bed.outbox.newest is not None:
                self.all.append(bed.outbox.newest)
            return is_new

        bed.outbox.put = recorded  # type: ignore[method-assign]

    def failed(self, text: str) -> list[Report]:
        """Return the reports with a failure of the runtime that contains this text."""
        return [each for each in self.all if overall(each) is State.FAILED and text in _message(each)]


def _message(report: Report) -> str:
    progress = Progress(report.sequence, report.digest, report.time)
    condition = verified(progress, report)
    assert condition.reason == "Unhealthy"
    return condition.message


def is_verified_after(n: int) -> Any:
    return lambda report: report.n > n and acknowledged(report)


async def test_edited_and_deleted_files_revoke_verified_and_are_repaired(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(ONE, TWO)
        assert acknowledged(first)
        reports, delivered = Reports(bed), file_of(bed, "one").read_bytes()

        edit(file_of(bed, "one"))
        second = await bed.wait_for_report(is_verified_after(first.n))

        [drifted] = reports.failed("component.one.yaml")
        one = resource_report(drifted, "one")
        assert (one.state, one.cause) == (State.FAILED, Cause.RUNTIME)
        assert f'{FIELD} is "edited" instead of "delivered"' in one.evidence[-1].text
        assert resource_report(drifted, "two").state is State.VERIFIED
        assert file_of(bed, "one").read_bytes() == delivered

        bed.clock.advance(3600)
        edit(file_of(bed, "one"), "s3cret-of-one", "an0ther-secret")
        third = await bed.wait_for_report(is_verified_after(second.n))

        drifted = reports.failed("component.one.yaml")[-1]
        assert "spec.metadata[accessKey].value" in repr(drifted)
        assert "s3cret" not in repr(reports.all)
        assert "an0ther" not in repr(reports.all)

        bed.clock.advance(3600)
        file_of(bed, "two").unlink()
        await bed.wait_for_report(is_verified_after(third.n))

        assert "component.two.yaml is missing" in reports.failed("component.two.yaml")[0].resources[1].evidence[-1].text
        assert file_of(bed, "two").exists()
        assert (await bed.get("/v1.0/state/two/key"))[0] == 204


async def test_a_removed_resource_that_is_back_revokes_verified_and_only_its_own_file_is_removed(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(ONE, TWO)
        written = file_of(bed, "two").read_bytes()
        removed = await bed.deliver(ONE)
        assert acknowledged(removed)
        reports, foreign = Reports(bed), bed.resources / "Foreign.YAML"

        foreign.write_bytes(written)
        back = await bed.wait_for_report(lambda report: not acknowledged(report))
        assert f"{foreign} defines it again" in _message(back)
        assert (resource_report(back, "two").state, resource_report(back, "one").state) == (
            State.FAILED,
            State.VERIFIED,
        )
        foreign.unlink()
        clean = await bed.wait_for_report(is_verified_after(back.n))

        file_of(bed, "two").write_bytes(written)
        repaired = await bed.wait_for_report(is_verified_after(clean.n))
        assert len(reports.failed("component.two.yaml is back")) == 1
        assert not file_of(bed, "two").exists()
        assert (await bed.get("/v1.0/state/two/key"))[0] == 400
        assert (repaired.sequence, await bed.state.trials()) == (removed.sequence, {})


async def test_a_hanging_sidecar_is_not_verified_until_it_responds_again(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, resync_s=RESYNC_S) as bed:
        first = await bed.deliver(ONE)
        bed.clock.advance(2 * WINDOW_S)
        process = bed.sidecar.process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        try:
            hanging = await bed.wait_for_report(lambda report: not acknowledged(report))
        finally:
            os.kill(process.pid, signal.SIGCONT)
        healthy = await bed.wait_for_report(is_verified_after(hanging.n))

        assert "the sidecar does not respond" in _message(hanging)
        assert bed.sidecar.process == process
        assert healthy.resources == first.resources
        assert await bed.state.trials() == {}


async def test_unchanged_files_are_checked_again_without_a_new_report(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, resync_s=RESYNC_S) as bed:
        first = await bed.deliver(ONE, TWO)
        while not bed.outcomes.empty():
            bed.outcomes.get_nowait()
        for _ in range(3):
            await bed.outcomes.get()

        assert bed.outbox.newest == first
        assert bed.sidecar.starts == 1


async def test_with_warn_drift_is_reported_until_the_file_is_as_delivered(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(ONE, drift=Drift.WARN)
        delivered = file_of(bed, "one").read_bytes()
        edit(file_of(bed, "one"))
        drifted = await bed.wait_for_report(lambda report: not acknowledged(report))
        assert "component.one.yaml" in _message(drifted)
        edited = file_of(bed, "one").read_bytes()
        assert edited != delivered

        edit(file_of(bed, "one"), "edited", "delivered")
        again = await bed.wait_for_report(is_verified_after(drifted.n))

        assert again.sequence == first.sequence
        # Only a new process can prove what it has loaded.
        assert bed.sidecar.starts == 2


async def test_with_off_files_are_not_compared_but_what_the_sidecar_lists_is(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary, resync_s=RESYNC_S) as bed:
        first = await bed.deliver(ONE, drift=Drift.OFF)
        edit(file_of(bed, "one"))
        edited = file_of(bed, "one").read_bytes()
        while not bed.outcomes.empty():
            bed.outcomes.get_nowait()
        for _ in range(3):
            await bed.outcomes.get()

        assert (bed.outbox.newest, file_of(bed, "one").read_bytes()) == (first, edited)

        file_of(bed, "one").unlink()
        unloaded = await bed.wait_for_report(lambda report: not acknowledged(report))

        assert "the sidecar does not list it" in _message(unloaded)
        assert not file_of(bed, "one").exists()
        assert (bed.sidecar.starts, await bed.state.trials()) == (1, {})


async def test_repairs_of_a_file_that_another_program_keeps_writing_back_off(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary, resync_s=RESYNC_S) as bed:
        labelled = {**ONE, "metadata": {**ONE["metadata"], "labels": {"team": "blue"}}}
        await bed.deliver(labelled)
        reports, file = Reports(bed), file_of(bed, "one")
        delivered, edits = file.read_bytes(), 0
        while edits < 3 or not reports.failed(f"repaired {edits - 1} times"):
            if file.read_bytes() == delivered:
                edits += 1
                edit(file, "blue", "green")
            await bed.outcomes.get()

        # A label is not loaded, so nothing was restarted.
        assert bed.sidecar.starts == 1


async def test_drift_while_the_agent_was_stopped_is_found_at_its_start(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, detach_sidecars=True) as first:
        await first.deliver(ONE)
        process = first.sidecar.process
    edit(file_of(first, "one"))

    async with running_agent(tmp_path, daprd_binary) as second:
        reports = Reports(second)
        assert second.sidecar.process is not None
        assert process is not None
        assert second.sidecar.process.pid == process.pid
        await second.wait_for_report(acknowledged)

        assert len(reports.failed("component.one.yaml")) == 1
        assert "delivered" in file_of(second, "one").read_text()


async def test_a_deleted_directory_is_restored_and_watched_again(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(ONE)
        file_of(bed, "one").unlink()
        bed.resources.rmdir()
        second = await bed.wait_for_report(is_verified_after(first.n))
        bed.clock.advance(3600)
        edit(file_of(bed, "one"))
        await bed.wait_for_report(is_verified_after(second.n))

        async def is_restored() -> bool:
            return "delivered" in file_of(bed, "one").read_text()

        assert await until(is_restored)


async def test_drift_within_the_window_is_repaired_and_not_quarantined(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(ONE)
        # daprd exits when it loads this.
        edit(file_of(bed, "one"), "state.in-memory", "state.unknown")
        second = await bed.wait_for_report(is_verified_after(first.n))

        assert second.sequence == first.sequence
        assert await bed.state.trials() == {}


async def test_the_server_shows_drift_with_file_and_field_and_the_age_of_verified(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    async with running(tmp_path / "server") as bed, bed.client() as admin:
        await bed.apply(runtime("r1"), profile("orders", ONE, apply={"drift": "warn"}))
        agent = AgentProgram(tmp_path / "agent", daprd_binary)
        agent.resync_interval = RESYNC_S
        await agent.join(bed, "r1")
        await start_server(agent)
        file = agent.state_dir / "resources" / "component.one.yaml"

        async def condition(reason: str, *, checked: bool) -> Condition | None:
            found = (await admin.runtime("r1")).conditions[0]
            return found if found.reason == reason and (found.checked is not None) == checked else None

        before = await until(lambda: condition("Verified", checked=True), within_s=DECIDED_WITHIN_S)
        edit(file)
        drifted = await until(lambda: condition("Unhealthy", checked=True), within_s=DECIDED_WITHIN_S)
        edit(file, "edited", "delivered")
        await until(lambda: condition("Verified", checked=True), within_s=DECIDED_WITHIN_S)

        assert before is not None
        assert drifted is not None
        assert drifted.message == f'Component/default/one: {file} differs: {FIELD} is "edited" instead of "delivered"'
        assert "s3cret" not in drifted.message


async def test_what_another_program_writes_during_the_proof_is_not_reported_as_verified(
    tmp_path: Path, daprd_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converge = LocalPlatform.converge
    async with running_agent(tmp_path, daprd_binary) as bed:
        reports = Reports(bed)

        async def converge_and_edit(self: LocalPlatform, *args: Any) -> Findings:
            found = await converge(self, *args)
            file = bed.resources / "component.one.yaml"
            file.write_text(file.read_text() + "# edited\n")
            return found

        monkeypatch.setattr(LocalPlatform, "converge", converge_and_edit)
        signed = bed.sign([component("one", "state.in-memory")], drift=Drift.WARN)
        await bed.inbox.accept(signed, bed.membership)
        await bed.wait_for_report(lambda report: overall(report) is State.FAILED)
    assert State.VERIFIED not in map(overall, reports.all)
