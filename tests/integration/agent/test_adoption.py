"""Sidecars outlive their agent and are adopted by the next one: real processes, real kills."""

import os
import signal
from pathlib import Path

from governor.agent.platforms.local.sidecars.daprd import OWNER_VARIABLE
from governor.agent.settings import SidecarSettings
from governor.domain.documents import Unproven
from governor.domain.reports import acknowledged
from governor.process.child import child, detached
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource_report, running_agent
from tests.integration.agent.test_server import AgentProgram, store, verified
from tests.integration.server.bed import running, runtime

ONE, TWO = component("one", "state.in-memory"), component("two", "state.in-memory")


def pid_of(bed: AgentBed) -> int:
    assert bed.sidecar.process is not None
    return bed.sidecar.process.pid


def marked_pids(bed: AgentBed) -> list[int]:
    return list(detached.pids_with_variable(OWNER_VARIABLE, str(bed.storage.directory)))


async def test_the_next_agent_adopts_a_running_sidecar_with_its_proofs(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, detach_sidecars=True) as first:
        await first.deliver(ONE)
        before = await first.deliver(ONE, TWO)
        pid = pid_of(first)
    assert marked_pids(first) == [pid]

    async with running_agent(tmp_path, daprd_binary) as second:
        after = await second.final_report(2)

        assert acknowledged(after)
        assert pid_of(second) == pid
        assert second.sidecar.starts == 0
        assert resource_report(after, "two").all_evidence[-1] == resource_report(before, "two").all_evidence[-1]
        assert "same process" in resource_report(after, "two").all_evidence[-1].text
    assert marked_pids(first) == []


async def test_a_change_is_verified_live_in_an_adopted_sidecar(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, detach_sidecars=True) as first:
        await first.deliver(ONE)
        pid = pid_of(first)
        following = first.sign([ONE, TWO])

    async with running_agent(tmp_path, daprd_binary) as second:
        await second.final_report(1)
        await second.inbox.accept(following, first.membership)
        report = await second.final_report(2)

        assert acknowledged(report)
        assert f"same process {pid} before and after" in resource_report(report, "two").all_evidence[-1].text


async def test_the_counters_of_a_sidecar_that_restarted_in_place_without_an_agent_prove_nothing(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary, detach_sidecars=True) as first:
        await first.deliver(ONE)
        following = first.sign([ONE, TWO], unproven=Unproven.REPORT)
    # A Resiliency makes Dapr restart within its process.
    (first.resources / "foreign.yaml").write_text(
        "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata: {name: calm}\nspec: {policies: {}, targets: {}}\n"
    )

    async with running_agent(tmp_path, daprd_binary) as second:

        async def has_restarted() -> bool:
            now = await second.sidecar.read()
            return now.status is not None and now.status.healthy and now.restarted_in_place is True

        await until(has_restarted)
        await second.inbox.accept(following, first.membership)
        report = await second.final_report(2)

        assert not acknowledged(report)
        assert "counters are not evidence" in resource_report(report, "two").all_evidence[-1].text


async def test_a_sidecar_whose_settings_changed_is_replaced(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, detach_sidecars=True) as first:
        await first.deliver(ONE)
        pid = pid_of(first)

    chatty = [SidecarSettings(app_id="app", argv=("--log-level=debug",))]
    async with running_agent(tmp_path, daprd_binary, sidecars=chatty) as second:
        assert acknowledged(await second.final_report(1))
        assert pid_of(second) != pid
        assert marked_pids(second) == [pid_of(second)]


async def test_a_sidecar_without_a_record_is_stopped_and_replaced(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, detach_sidecars=True) as first:
        await first.deliver(ONE)
        pid = pid_of(first)
    # As after a kill between the start of the process and the write of its record.
    (first.storage.directory / "sidecars" / "app.json").unlink()

    async with running_agent(tmp_path, daprd_binary) as second:
        assert acknowledged(await second.final_report(1))
        assert marked_pids(second) == [pid_of(second)]
        assert pid_of(second) != pid


async def test_an_adopted_sidecar_that_exits_is_restarted(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, detach_sidecars=True) as first:
        await first.deliver(ONE)
        pid = pid_of(first)

    async with running_agent(tmp_path, daprd_binary) as second:
        await second.final_report(1)
        os.kill(pid, signal.SIGKILL)

        async def is_another() -> bool:
            return second.sidecar.process is not None and pid_of(second) != pid

        await until(is_another)
        assert acknowledged(await second.wait_for_report(lambda it: "started after the write" in repr(it.resources)))
        assert await second.state.trials() == {}


async def test_a_killed_agent_takes_no_application_down_and_its_successor_adopts_the_sidecar(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    agent = AgentProgram(tmp_path / "agent", daprd_binary)
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), store("orders", "one"))
        await agent.join(bed, "r1")
        await start_server(agent)
        await verified(bed, 1)
        mark = str(agent.state_dir)
        [pid] = detached.pids_with_variable(OWNER_VARIABLE, mark)
        await agent.kill()
        assert await agent.status(agent.ports["http"], "/v1.0/state/orders/key") == 204

        await agent.start()
        await bed.apply(store("orders", "two"))
        await verified(bed, 2)

        assert list(detached.pids_with_variable(OWNER_VARIABLE, mark)) == [pid]
        await agent.stop()
        assert not child.start_time(pid)
