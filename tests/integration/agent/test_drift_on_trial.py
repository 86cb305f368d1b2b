"""Files that are edited while a change is on trial, on a real sidecar: its exit for the edit is not the change's."""

import asyncio
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from governor.agent.platforms.local.platform import LocalPlatform
from governor.agent.verification.findings import DriftFindings
from governor.domain.documents import Drift, Unproven
from governor.domain.reports import Cause, Report, State, acknowledged, overall
from governor.process.flowcontrol.backoff import Backoff, Retries
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource, resource_report, running_agent
from tests.integration.agent.test_drift import ONE, TWO, Reports, edit, file_of, is_verified_after
from tests.integration.agent.test_rollback import BlockAfter, exiting_daprd, rollback_evidence

BROKEN = component("broken", "state.no-such-type")
"""daprd exits on it immediately."""


class Comparisons:
    """The agent's comparisons of its files with a delivery: they can be held, and something done before each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allowed = asyncio.Event()
        self.allowed.set()
        self.before: Callable[[], None] = lambda: None
        find_drift = LocalPlatform.find_drift

        async def find_drift_if_allowed(platform: LocalPlatform, *args: Any, **kwargs: Any) -> DriftFindings | None:
            await self.allowed.wait()
            self.before()
            return await find_drift(platform, *args, **kwargs)

        monkeypatch.setattr(LocalPlatform, "find_drift", find_drift_if_allowed)


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Comparisons:
    return Comparisons(monkeypatch)


async def has_exited(bed: AgentBed) -> bool:
    return bed.sidecar.process is None


async def exited(bed: AgentBed) -> None:
    await until(lambda: has_exited(bed))


def break_file(file: Path) -> None:
    """Edit a file so that daprd exits when it loads it."""
    edit(file, "state.in-memory", "state.unknown")


def blames_change(report: Report) -> bool:
    return any((each.state, each.cause) == (State.FAILED, Cause.CHANGE) for each in report.findings)


def blaming_drift(reports: Reports, text: str) -> list[Report]:
    """Return the reports with a resource that contains this text and has failed because of the runtime."""
    return [
        report
        for report in reports.all
        for each in report.resources
        if (each.state, each.cause) == (State.FAILED, Cause.RUNTIME) and text in repr(each)
    ]


async def reported(reports: Reports, text: str) -> Report:
    """Wait for a report with a resource that contains this text and has failed because of the runtime."""

    async def found() -> Report | None:
        return next(iter(blaming_drift(reports, text)), None)

    report = await until(found)
    assert report is not None
    return report


async def is_blameless(bed: AgentBed, reports: Reports) -> bool:
    """Return whether no failure was held against the change."""
    return not any(map(blames_change, reports.all)) and await bed.state.trials() == {}


@pytest.mark.parametrize("policy", list(Drift))
async def test_an_edit_that_is_undone_before_it_is_seen_is_named_and_the_next_process_proves_the_change(
    tmp_path: Path, daprd_binary: Path, comparisons: Comparisons, policy: Drift
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(ONE, drift=policy)
        verified = await bed.deliver(ONE, TWO, drift=policy)
        reports, file = Reports(bed), file_of(bed, "one")
        delivered = file.read_bytes()
        bed.sidecar._retries = BlockAfter(0)
        comparisons.allowed.clear()

        break_file(file)
        await exited(bed)
        file.write_bytes(delivered)
        comparisons.allowed.set()

        failed = await reported(reports, "component.one.yaml was changed by another program")
        assert "state.unknown" in repr(resource_report(failed, "one"))
        bed.sidecar._skip_backoff.set()
        again = await bed.wait_for_report(is_verified_after(failed.n))
        assert again.sequence == verified.sequence
        assert await is_blameless(bed, reports)
        assert len(blaming_drift(reports, "component.one.yaml")) == 1


async def test_an_edit_is_not_held_against_the_next_change_either(
    tmp_path: Path, daprd_binary: Path, comparisons: Comparisons
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(ONE)
        await bed.deliver(ONE, TWO)
        reports, file = Reports(bed), file_of(bed, "one")
        delivered = file.read_bytes()
        bed.sidecar._retries = BlockAfter(0)
        comparisons.allowed.clear()
        break_file(file)
        await exited(bed)
        file.write_bytes(delivered)

        # It changes nothing for the sidecar, whose next process proves it.
        sequence = await bed.send(ONE, TWO, component("other", "state.in-memory", scopes=["another"]))
        comparisons.allowed.set()
        await until(lambda: is_written(bed, "other"))
        bed.sidecar._skip_backoff.set()

        await bed.wait_for_report(lambda report: report.sequence == sequence and acknowledged(report))
        assert await is_blameless(bed, reports)


async def is_written(bed: AgentBed, name: str) -> bool:
    return file_of(bed, name).exists()


@pytest.mark.parametrize("policy", [Drift.WARN, Drift.OFF])
async def test_where_drift_is_not_repaired_a_failure_for_an_edit_is_reported_until_it_is_undone(
    tmp_path: Path, daprd_binary: Path, policy: Drift
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(ONE, drift=policy)
        await bed.deliver(ONE, TWO, drift=policy)
        reports, file = Reports(bed), file_of(bed, "one")
        delivered = file.read_bytes()
        bed.sidecar._retries = BlockAfter(1)

        break_file(file)
        failed = await reported(reports, "component.one.yaml differs: spec.type is changed")
        one = resource_report(failed, "one")
        assert (one.state, one.cause) == (State.FAILED, Cause.RUNTIME)
        assert not blames_change(failed)
        await until(lambda: is_down_after(bed, starts=2))
        assert file.read_bytes() != delivered

        file.write_bytes(delivered)
        bed.sidecar._skip_backoff.set()
        await bed.wait_for_report(is_verified_after(failed.n))
        assert await is_blameless(bed, reports)


async def is_down_after(bed: AgentBed, starts: int) -> bool:
    return bed.sidecar.starts == starts and bed.sidecar.process is None


async def test_a_process_that_ran_before_a_repair_may_exit_after_it(tmp_path: Path, daprd_binary: Path) -> None:
    """It may have loaded the edit, and exit for it, at any time."""
    program, trigger = exiting_daprd(tmp_path, daprd_binary)
    async with running_agent(tmp_path, program) as bed:
        await bed.deliver(ONE)
        await bed.deliver(ONE, TWO, unproven=Unproven.REPORT)
        reports = Reports(bed)
        edit(file_of(bed, "one"))
        unproven = await bed.wait_for_report(lambda report: overall(report) is State.UNPROVEN)
        assert bed.sidecar.starts == 1

        trigger.touch()

        await bed.wait_for_report(is_verified_after(unproven.n))
        assert (bed.sidecar.starts, await is_blameless(bed, reports)) == (2, True)


async def test_an_agent_that_starts_after_a_repair_does_not_hold_the_edit_against_the_change_either(
    tmp_path: Path, daprd_binary: Path
) -> None:
    program, trigger = tmp_path / "dying-daprd", tmp_path / "die"
    # Why an adopted process has ended is known from its log only.
    program.write_text(
        "#!/bin/sh\n"
        f"trigger={shlex.quote(str(trigger))}\n"
        '( while [ ! -e "$trigger" ]; do sleep 0.02; done; rm "$trigger"\n'
        """  echo '{"level":"fatal","msg":"edited"}'; kill -KILL $$ ) &\n"""
        f'exec {shlex.quote(str(daprd_binary))} "$@"\n'
    )
    program.chmod(0o700)
    async with running_agent(tmp_path, program, detach_sidecars=True) as first:
        await first.deliver(ONE)
        await first.deliver(ONE, TWO, unproven=Unproven.REPORT)
        edit(file_of(first, "one"))
        await first.wait_for_report(lambda report: overall(report) is State.UNPROVEN)
    async with running_agent(tmp_path, program) as second:
        reports = Reports(second)
        unproven = await second.wait_for_report(lambda report: overall(report) is State.UNPROVEN)
        trigger.touch()

        await second.wait_for_report(is_verified_after(unproven.n))
        assert (second.sidecar.starts, await is_blameless(second, reports)) == (1, True)


@pytest.mark.parametrize("how", ["edited", "deleted"])
async def test_a_change_that_fails_beside_an_edit_is_judged_after_the_repair(
    tmp_path: Path, daprd_binary: Path, comparisons: Comparisons, how: str
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        good = await bed.deliver(ONE)
        reports, file = Reports(bed), file_of(bed, "one")
        delivered = file.read_bytes()
        changes = [lambda: edit(file) if how == "edited" else file.unlink()]
        bed.sidecar._retries = BlockAfter(0)
        # When the change has failed, before the agent judges that.
        comparisons.before = lambda: changes.pop()() if bed.sidecar.process is None and changes else None

        report = await bed.deliver(ONE, BROKEN)

        assert [each.sequence for each in blaming_drift(reports, "component.one.yaml")] == [report.sequence]
        assert resource_report(report, "broken").cause is Cause.CHANGE
        assert rollback_evidence(report) == f"rolled back to bundle {good.digest} of delivery 1; verified"
        assert file.read_bytes() == delivered


async def test_where_drift_is_ignored_a_change_that_fails_beside_an_edit_is_judged_when_it_is_undone(
    tmp_path: Path, daprd_binary: Path, comparisons: Comparisons
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(ONE)
        reports, file = Reports(bed), file_of(bed, "one")
        delivered, edits = file.read_bytes(), [lambda: edit(file)]
        bed.sidecar._retries = BlockAfter(0)
        comparisons.before = lambda: edits.pop()() if bed.sidecar.process is None and edits else None
        sequence = await bed.send(ONE, BROKEN, drift=Drift.OFF)
        failed = await reported(reports, "component.one.yaml differs")
        assert (failed.sequence, await is_blameless(bed, reports)) == (sequence, True)

        file.write_bytes(delivered)
        # One that starts before the agent sees that is not judged.
        bed.sidecar._retries = Retries(Backoff(0.1, 0.1), random.Random())
        bed.sidecar._skip_backoff.set()

        report = await bed.wait_for_report(lambda it: blames_change(it) and "; verified" in rollback_evidence(it))
        assert resource_report(report, "broken").cause is Cause.CHANGE


async def test_a_foreign_file_that_defines_a_resource_too_is_not_held_against_the_change(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(ONE)
        verified = await bed.deliver(ONE, TWO)
        reports, foreign = Reports(bed), bed.resources / "mine.yaml"

        foreign.write_bytes(file_of(bed, "two").read_bytes())
        failed = await reported(reports, f"{foreign} defines it too")
        foreign.unlink()

        again = await bed.wait_for_report(is_verified_after(failed.n))
        assert (again.sequence, await is_blameless(bed, reports)) == (verified.sequence, True)


async def test_a_program_that_keeps_touching_a_file_does_not_keep_a_change_from_being_judged(
    tmp_path: Path, daprd_binary: Path
) -> None:
    program, resources = tmp_path / "exiting-daprd", tmp_path / "resources"
    program.write_text(
        "#!/bin/sh\n"
        f"cd {shlex.quote(str(resources))} || exit\n"
        "[ ! -e resiliency.calm.yaml ] || { touch component.one.yaml; exit 1; }\n"
        f'exec {shlex.quote(str(daprd_binary))} "$@"\n'
    )
    program.chmod(0o700)
    async with running_agent(tmp_path, program) as bed:
        await bed.deliver(ONE)
        reports = Reports(bed)
        bed.sidecar._retries = Retries(Backoff(0.1, 0.1), random.Random())

        await bed.send(ONE, resource("Resiliency", "calm", {"policies": {}, "targets": {}}))

        report = await bed.wait_for_report(lambda it: blames_change(it) and "; verified" in rollback_evidence(it))
        assert report.sequence == 2
        assert blaming_drift(reports, "component.one.yaml was changed by another program")
