"""Sidecars that need a restart for a change: old versions, rolling restarts, external sidecars."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from governor.agent.platforms.local.sidecars.external import ExternalSidecar
from governor.agent.platforms.local.sidecars.procfs import listening_pid, listening_socket
from governor.agent.settings import SidecarSettings
from governor.domain.documents import Strategy, Unproven
from governor.domain.reports import Report, State, acknowledged, overall
from governor.process.child.child import start_time_now, started_after
from testbed.daprd import Daprd, Sidecar
from testbed.pytest_plugin import StartDaprd
from testbed.redis import Redis
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource, resource_report, running_agent
from tests.integration.agent.test_rollback import rollback_evidence

CALM = resource("Resiliency", "calm", {"policies": {"timeouts": {"short": "3s"}}, "targets": {}})
HOT = resource("Configuration", "hot", {"features": [{"name": "HotReload", "enabled": True}]})
THREE = [SidecarSettings(app_id=f"app-{number}") for number in range(3)]


def one(note: str) -> dict[str, Any]:
    return component("one", "state.in-memory", note=note)


def last_evidence(report: Report) -> dict[str, str]:
    return {each.workload.name: each.evidence[-1].text for each in report.workloads}


async def test_an_old_sidecar_is_restarted_for_a_change_and_verified_in_the_new_process(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        assert acknowledged(await bed.deliver(one("a")))
        assert bed.sidecar.starts == 1

        report = await bed.deliver(one("b"))

        assert acknowledged(report)
        assert bed.sidecar.starts == 2
        assert "started after the write" in resource_report(report, "one").all_evidence[-1].text
        assert "was started with the resources directory" in resource_report(report, "one").all_evidence[-1].text


async def test_an_old_sidecar_that_may_not_restart_is_unproven_and_its_version_is_named(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        await bed.deliver(one("a"))

        report = await bed.deliver(one("b"), unproven=Unproven.REPORT, window_s=1)

        assert resource_report(report, "one").state is State.UNPROVEN
        assert "Dapr 1.16.0 loads changes only at startup" in resource_report(report, "one").all_evidence[-1].text
        assert bed.sidecar.starts == 1


async def test_an_old_sidecar_with_hot_reload_enabled_reloads_components(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        await bed.deliver(HOT, one("a"))
        process = bed.sidecar.process

        report = await bed.deliver(HOT, one("b"))

        assert acknowledged(report)
        assert bed.sidecar.process == process
        assert "same process" in resource_report(report, "one").all_evidence[-1].text


async def test_a_kind_that_an_old_sidecar_does_not_list_is_unproven_without_waiting(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        # The window is longer than the timeout of the test.
        report = await bed.deliver(CALM, one("a"), window_s=3600)

        assert resource_report(report, "calm").state is State.UNPROVEN
        assert "Dapr 1.16.0 does not show which Resiliency" in resource_report(report, "calm").all_evidence[-1].text
        assert resource_report(report, "one").state is State.VERIFIED


async def test_a_bad_change_is_rolled_back_on_an_old_sidecar_too(tmp_path: Path, daprd_1_16_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        await bed.deliver(one("a"))

        report = await bed.deliver(component("one", "state.no-such-type"))

        assert overall(report) is State.FAILED
        assert rollback_evidence(report).endswith("of delivery 1; verified")
        assert (await bed.get("/v1.0/state/one/key"))[0] == 204


async def test_a_rolling_change_restarts_one_sidecar_after_another(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, sidecars=THREE) as bed:
        await bed.deliver(one("a"))

        report = await bed.deliver(one("b"), strategy=Strategy.ROLLING)

        assert acknowledged(report)
        assert [each.starts for each in bed.sidecars if not isinstance(each, ExternalSidecar)] == [2, 2, 2]
        times = [each.evidence[-1].time for each in report.workloads]
        assert times == sorted(times)
        assert all("started after the write" in text for text in last_evidence(report).values())


async def test_a_rolling_change_restarts_only_affected_sidecars(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, sidecars=THREE) as bed:
        await bed.deliver(one("a"))
        scoped = component("two", "state.in-memory", scopes=["app-1"])

        assert acknowledged(await bed.deliver(one("a"), scoped, strategy=Strategy.ROLLING))

        assert [each.starts for each in bed.sidecars if not isinstance(each, ExternalSidecar)] == [1, 2, 1]


async def test_a_rolling_change_stops_at_the_first_sidecar_that_fails(tmp_path: Path, daprd_1_16_binary: Path) -> None:
    # An old version does not reload, so a sidecar that is not restarted has not loaded the change.
    async with running_agent(tmp_path, daprd_1_16_binary, sidecars=THREE) as bed:
        await bed.deliver(one("a"))

        report = await bed.deliver(component("one", "state.no-such-type"), strategy=Strategy.ROLLING)

        assert overall(report) is State.FAILED
        assert rollback_evidence(report).endswith("of delivery 1; verified")
        first, *rest = report.workloads
        assert "daprd exited with code 1" in first.evidence[0].text
        assert ["not restarted: the change is not verified in app-0" in each.evidence[0].text for each in rest] == [
            True,
            True,
        ]


async def start_later(sidecar: Daprd) -> None:
    """Start a sidecar in a later tick than now: within one tick, a start is not known to be after a write."""
    now = start_time_now()

    async def is_later() -> bool:
        return started_after(start_time_now(), now)

    await until(is_later)
    await sidecar.start()


@pytest.fixture
async def external(
    tmp_path: Path, daprd_binary: Path, start_daprd: StartDaprd
) -> AsyncIterator[tuple[Daprd, AgentBed]]:
    """Start a sidecar, and an agent for which it is external."""
    (tmp_path / "agent" / "resources").mkdir(parents=True)
    theirs = await start_daprd(Sidecar("theirs", tmp_path / "agent" / "resources"))
    settings = SidecarSettings(
        app_id="theirs", public_port=theirs.ports["public"], metrics_port=theirs.ports["metrics"], external=True
    )
    async with running_agent(tmp_path / "agent", daprd_binary, sidecars=[settings]) as bed:
        yield theirs, bed


async def test_an_external_sidecar_is_verified_live_if_possible(external: tuple[Daprd, AgentBed]) -> None:
    theirs, bed = external
    pid = theirs.pid

    report = await bed.deliver(one("a"))

    assert acknowledged(report), last_evidence(report)
    assert f"same process {pid} before and after" in resource_report(report, "one").all_evidence[-1].text
    assert theirs.pid == pid


async def test_an_external_sidecar_is_never_restarted_and_verified_after_a_restart_by_its_owner(
    external: tuple[Daprd, AgentBed],
) -> None:
    theirs, bed = external
    await bed.deliver(one("a"))
    pid = theirs.pid

    report = await bed.deliver(one("a"), CALM)

    assert resource_report(report, "calm").state is State.UNPROVEN
    assert resource_report(report, "calm").all_evidence[-1].text.startswith("restart needed: ")
    assert theirs.pid == pid
    await theirs.stop()
    await start_later(theirs)
    recovered = await bed.wait_for_report(acknowledged)
    assert f"process {theirs.pid} started after the write" in resource_report(recovered, "calm").all_evidence[-1].text
    assert isinstance(bed.sidecars[0], ExternalSidecar)


LISTENER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def listening(port: int, *prefix: str) -> AsyncIterator[tuple[int, int]]:
    """Run a process that listens on a port, 0 chooses one, and yield its pid and port."""
    process = await asyncio.create_subprocess_exec(
        *(*prefix, sys.executable, "-c", LISTENER, str(port)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.pid, int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


async def test_a_process_of_another_network_namespace_is_not_taken_for_an_external_sidecar() -> None:
    namespace = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    async with listening(0, *namespace) as (foreign, port):
        assert listening_pid(port) != foreign
        async with listening(port) as (own, _):
            assert listening_pid(port) == own
            assert listening_socket(foreign, port) == 0


async def test_a_live_proof_is_given_up_when_the_owner_replaces_the_external_sidecar(
    external: tuple[Daprd, AgentBed], redis_server: Redis
) -> None:
    theirs, bed = external
    await bed.deliver()
    await redis_server.pause()
    access = {"redisHost": redis_server.address, "redisPassword": redis_server.password}
    slow = component("slow", "state.redis", **access, readTimeout="300s")
    slow["spec"]["initTimeout"] = "300s"
    # The window is longer than the timeout of the test.
    await bed.inbox.accept(bed.sign([slow], window_s=3600), bed.membership)
    await bed.wait_for_report(lambda report: overall(report) is State.APPLIED)
    await theirs.kill()
    redis_server.resume()
    await start_later(theirs)

    report = await bed.wait_for_report(lambda report: report.sequence == 2 and acknowledged(report))

    assert f"process {theirs.pid} started after the write" in resource_report(report, "slow").all_evidence[-1].text
