"""Maintenance windows and holds on a machine: what waits for them, what does not, and what goes on meanwhile."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from os import kill
from pathlib import Path
from typing import Any

import pytest

from governor.agent.ledger import DeliveryPhase
from governor.agent.loop import KEY
from governor.agent.settings import SidecarSettings
from governor.domain.conditions import Progress, verified
from governor.domain.documents import Strategy, WindowScope
from governor.domain.reports import Cause, Report, State, acknowledged, overall
from governor.domain.windows import HELD, WAITING_FOR_WINDOW, Hold, Window
from testbed.waiting import until
from tests.integration.agent.bed import (
    WINDOW_S,
    AgentBed,
    component,
    fingerprint,
    resource,
    resource_report,
    running_agent,
)
from tests.integration.agent.test_rollback import rollback_evidence

AHEAD = timedelta(hours=6)
TRACING = resource("Configuration", "tracing", {"tracing": {"samplingRate": "0.5"}})
"""Only a restart loads it."""
THREE = [SidecarSettings(app_id=f"app-{number}") for number in range(3)]


def one(note: str) -> dict[str, Any]:
    return component("one", "state.in-memory", note=note)


def later(bed: AgentBed) -> tuple[Window, ...]:
    """Return a window that opens in some hours."""
    return (Window(f"{bed.clock.now() + AHEAD:%H:%M}", 60),)


def hold(bed: AgentBed) -> Hold:
    return Hold(bed.clock.now() + AHEAD, "inventory")


async def open_window(bed: AgentBed) -> None:
    """Set the clock to the time at which the window is open and the hold has expired."""
    bed.clock.jump(AHEAD.total_seconds() + 60)
    bed.reconciler.add(KEY)


def starts(bed: AgentBed) -> list[int]:
    return [each.starts for each in bed.sidecars if hasattr(each, "starts")]


def files(bed: AgentBed) -> dict[str, tuple[int, ...]]:
    return {str(file): fingerprint(file) for file in sorted(bed.resources.rglob("*.yaml"))}


def condition_of(report: Report) -> tuple[str, str]:
    condition = verified(Progress(report.sequence, report.digest, report.time), report)
    return condition.reason, condition.message


def waits_for(report: Report) -> str:
    assert report.waits_for is not None
    return report.waits_for.reason


@pytest.fixture
async def bed(tmp_path: Path, daprd_binary: Path) -> AsyncIterator[AgentBed]:
    async with verified_agent(tmp_path, daprd_binary) as running:
        yield running


@asynccontextmanager
async def verified_agent(directory: Path, program: Path, **options: Any) -> AsyncIterator[AgentBed]:
    """Run an agent with a verified and settled delivery."""
    async with running_agent(directory, program, **options) as bed:
        assert acknowledged(await bed.deliver(one("a")))
        bed.clock.advance(WINDOW_S)
        bed.reconciler.add(KEY)
        await until(lambda: is_settled(bed))
        yield bed


async def is_settled(bed: AgentBed) -> bool:
    assert bed.inbox.newest is not None
    return bed.ledger.phase(bed.inbox.newest) is DeliveryPhase.SETTLED


# -- windows -------------------------------------------------------------------------------------------------------


async def test_a_change_that_restarts_waits_for_the_window_and_its_trial_begins_then(bed: AgentBed) -> None:
    process, before = bed.sidecar.process, files(bed)

    waiting = await bed.waiting_report(await bed.send(one("b"), TRACING, windows=later(bed)))

    assert (overall(waiting), acknowledged(waiting), waits_for(waiting)) == (State.RECEIVED, False, WAITING_FOR_WINDOW)
    reason, message = condition_of(waiting)
    assert reason == "WaitingForWindow"
    assert message.startswith("delivery 2 waits: outside of the maintenance window (next: 20")
    assert (bed.sidecar.process, files(bed)) == (process, before)

    # The trial of a change that waits does not end.
    bed.clock.advance(WINDOW_S)
    await open_window(bed)
    report = await bed.final_report(2)

    assert acknowledged(report)
    assert report.restraint is None
    assert starts(bed) == [2]
    assert not await is_settled(bed)
    bed.clock.advance(WINDOW_S)
    bed.reconciler.add(KEY)
    await until(lambda: is_settled(bed))


async def test_a_change_that_the_sidecar_reloads_does_not_wait(bed: AgentBed) -> None:
    process = bed.sidecar.process

    report = await bed.deliver(one("b"), windows=later(bed))

    assert acknowledged(report)
    assert bed.sidecar.process == process
    assert "same process" in resource_report(report, "one").all_evidence[-1].text


async def test_a_change_that_the_sidecar_reloads_waits_if_the_policy_says_so(bed: AgentBed) -> None:
    process, before = bed.sidecar.process, files(bed)

    waiting = await bed.waiting_report(await bed.send(one("b"), windows=later(bed), scope=WindowScope.ALL))
    assert (waits_for(waiting), bed.sidecar.process, files(bed)) == (WAITING_FOR_WINDOW, process, before)

    await open_window(bed)
    assert acknowledged(await bed.final_report(2))
    assert bed.sidecar.process == process


async def test_a_first_delivery_does_not_wait(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(one("a"), TRACING, windows=later(bed))
        assert acknowledged(report)
        assert starts(bed) == [1]


async def test_a_failing_change_is_rolled_back_outside_of_the_window(bed: AgentBed) -> None:
    """It was reloaded, so it did not wait; the sidecar exits."""
    report = await bed.deliver(component("one", "state.no-such-type"), windows=later(bed))

    assert overall(report) is State.FAILED
    assert rollback_evidence(report).endswith("of delivery 1; verified")
    assert (await bed.get("/v1.0/state/one/key"))[0] == 204


async def test_a_sidecar_that_dies_is_restarted_with_what_is_in_use(bed: AgentBed) -> None:
    await bed.waiting_report(await bed.send(one("b"), TRACING, windows=later(bed)))
    process, before = bed.sidecar.process, files(bed)
    assert process is not None

    kill(process.pid, signal.SIGKILL)

    await until(lambda: has_other_process(bed, process.pid))
    waiting = await bed.wait_for_report(lambda report: overall(report) is State.RECEIVED)
    assert (waits_for(waiting), files(bed)) == (WAITING_FOR_WINDOW, before)


async def has_other_process(bed: AgentBed, pid: int) -> bool:
    return bed.sidecar.process is not None and bed.sidecar.process.pid != pid and not bed.sidecar.not_ready()


@pytest.mark.parametrize("detached", [True, False], ids=["running", "stopped"])
async def test_a_restarted_agent_goes_on_waiting(tmp_path: Path, daprd_binary: Path, detached: bool) -> None:
    """Its sidecars run on, or are started again with what was in use."""
    async with verified_agent(tmp_path, daprd_binary, detach_sidecars=detached) as bed:
        await bed.waiting_report(await bed.send(one("b"), TRACING, windows=later(bed)))
        process, before = bed.sidecar.process, files(bed)
    async with running_agent(tmp_path, daprd_binary) as bed:
        waiting = await bed.waiting_report(2)
        assert (overall(waiting), waits_for(waiting)) == (State.RECEIVED, WAITING_FOR_WINDOW)
        assert files(bed) == before
        await until(lambda: is_up(bed))
        assert process is not None
        assert bed.sidecar.process is not None
        assert (bed.sidecar.process.pid == process.pid) is detached

        bed.clock.jump(WINDOW_S)  # as the clock of the first agent
        await open_window(bed)
        assert acknowledged(await bed.final_report(2))


async def is_up(bed: AgentBed) -> bool:
    return not bed.sidecar.not_ready()


async def test_drift_is_repaired_at_once_and_the_restart_that_proves_it_waits(bed: AgentBed) -> None:
    assert acknowledged(await bed.deliver(one("b"), windows=later(bed)))
    (file,) = bed.resources.rglob("*.yaml")
    before, process = file.read_text(), bed.sidecar.process

    file.write_text(before.replace("value: b", "value: c"))

    waiting = await bed.waiting_report(2)
    assert (file.read_text(), bed.sidecar.process) == (before, process)
    assert (overall(waiting), waits_for(waiting)) == (State.APPLIED, WAITING_FOR_WINDOW)
    assert "; not restarted: outside of the maintenance window" in resource_report(waiting, "one").all_evidence[-1].text

    await open_window(bed)
    await bed.wait_for_report(acknowledged)
    assert starts(bed) == [2]


async def test_a_sidecar_that_drift_has_stopped_is_started_with_the_repaired_file_at_once(bed: AgentBed) -> None:
    assert acknowledged(await bed.deliver(one("b"), windows=later(bed)))
    (file,) = bed.resources.rglob("*.yaml")
    before, process = file.read_text(), bed.sidecar.process
    assert process is not None

    file.write_text(before.replace("state.in-memory", "state.no-such-type"))

    await until(lambda: has_other_process(bed, process.pid))
    await bed.wait_for_report(acknowledged)
    assert file.read_text() == before


async def test_a_window_that_ends_stops_a_rolling_restart_between_two_sidecars(
    tmp_path: Path, daprd_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with verified_agent(tmp_path, daprd_binary, sidecars=THREE) as bed:
        windows, restart = (Window(f"{bed.clock.now() - timedelta(minutes=5):%H:%M}", 60),), bed.sidecar.restart

        async def last_restart(config: Path | None) -> None:
            bed.clock.jump(3600)
            await restart(config)

        monkeypatch.setattr(bed.sidecar, "restart", last_restart)
        sequence = await bed.send(one("b"), windows=windows, strategy=Strategy.ROLLING)
        waiting = await bed.waiting_report(sequence)

        assert starts(bed) == [2, 1, 1]
        assert [each.state for each in waiting.workloads] == [State.VERIFIED, State.APPLIED, State.APPLIED]
        assert condition_of(waiting)[0] == "WaitingForWindow"
        monkeypatch.undo()

        bed.clock.jump(-3600)
        bed.reconciler.add(KEY)
        assert acknowledged(await bed.final_report(sequence))
        assert starts(bed) == [2, 2, 2]


# -- holds ---------------------------------------------------------------------------------------------------------


async def test_nothing_is_applied_while_held_and_all_of_it_when_the_hold_has_expired(bed: AgentBed) -> None:
    process, before = bed.sidecar.process, files(bed)

    waiting = await bed.waiting_report(await bed.send(one("b"), hold=hold(bed)))
    assert (waits_for(waiting), overall(waiting), files(bed)) == (HELD, State.RECEIVED, before)
    assert waiting.restraint is not None
    assert waiting.restraint.message.endswith("Z: inventory")

    await open_window(bed)
    assert acknowledged(await bed.final_report(2))
    assert bed.sidecar.process == process


async def test_the_end_of_a_hold_by_a_newer_delivery_applies_the_change(bed: AgentBed) -> None:
    await bed.waiting_report(await bed.send(one("b"), hold=hold(bed)))
    assert acknowledged(await bed.deliver(one("b")))


async def test_what_is_in_use_stays_verified_under_a_hold(bed: AgentBed) -> None:
    process = bed.sidecar.process
    report = await bed.deliver(one("a"), hold=hold(bed))
    assert acknowledged(report)
    assert report.restraint is not None
    assert (report.restraint.reason, report.restraint.waits) == (HELD, False)
    assert bed.sidecar.process == process


async def test_drift_is_found_and_not_repaired_while_held(bed: AgentBed) -> None:
    await bed.deliver(one("a"), hold=hold(bed))
    (file,) = bed.resources.rglob("*.yaml")
    before = file.read_text()

    file.write_text(before.replace("state.in-memory", "state.sqlite"))

    drifted = await bed.wait_for_report(lambda report: overall(report) is State.FAILED)
    assert "; not repaired: held until" in resource_report(drifted, "one").all_evidence[-1].text
    assert file.read_text() != before

    await open_window(bed)
    await bed.wait_for_report(lambda report: acknowledged(report) and report.restraint is None)
    assert file.read_text() == before


async def test_drift_of_what_is_in_use_is_found_while_a_change_waits(bed: AgentBed) -> None:
    await bed.waiting_report(await bed.send(one("b"), hold=hold(bed)))
    (file,) = bed.resources.rglob("*.yaml")

    file.write_text(file.read_text().replace("state.in-memory", "state.sqlite"))

    drifted = await bed.wait_for_report(lambda report: overall(report) is State.FAILED)
    found = resource_report(drifted, "one")
    assert (found.cause, waits_for(drifted)) == (Cause.RUNTIME, HELD)
    assert "spec.type" in found.all_evidence[-1].text
    assert condition_of(drifted)[0] == "Unhealthy"
    assert condition_of(drifted)[1].endswith("Z: inventory")


async def test_a_sidecar_that_hangs_is_reported_while_a_change_waits(bed: AgentBed) -> None:
    await bed.waiting_report(await bed.send(one("b"), TRACING, windows=later(bed)))
    process = bed.sidecar.process
    assert process is not None

    kill(process.pid, signal.SIGSTOP)
    try:
        bed.reconciler.add(KEY)
        unhealthy = await bed.wait_for_report(lambda report: overall(report) is State.FAILED)
        assert {each.cause for each in unhealthy.workloads} == {Cause.RUNTIME}
        assert (condition_of(unhealthy)[0], waits_for(unhealthy)) == ("Unhealthy", WAITING_FOR_WINDOW)
    finally:
        kill(process.pid, signal.SIGCONT)
    bed.reconciler.add(KEY)
    await bed.wait_for_report(lambda report: overall(report) is State.RECEIVED)


async def test_a_change_that_fails_on_trial_is_rolled_back_although_the_runtime_is_held(bed: AgentBed) -> None:
    broken = component("one", "state.no-such-type")
    await bed.inbox.accept(bed.sign([broken]), bed.membership)
    await until(lambda: has_exited(bed))
    await bed.send(broken, hold=hold(bed))

    report = await bed.final_report(3)
    assert overall(report) is State.FAILED
    assert rollback_evidence(report).endswith("of delivery 1; verified")


async def has_exited(bed: AgentBed) -> bool:
    return bed.sidecar.starts > 1 or bed.sidecar.process is None
