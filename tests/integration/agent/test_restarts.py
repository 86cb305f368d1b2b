"""Sidecars that must restart to take a change: old versions, rolling restarts, and those that others run."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from governor.agent.platforms.local.external import ExternalSidecar
from governor.agent.settings import SidecarSettings
from governor.domain.documents import Strategy, Unproven
from governor.domain.reports import Report, State, acknowledged, overall
from testbed.daprd import Daprd, Sidecar
from testbed.pytest_plugin import StartDaprd
from testbed.redis import Redis
from tests.integration.agent.bed import AgentBed, component, resource, running_agent, said_of
from tests.integration.agent.test_return import returned

CALM = resource("Resiliency", "calm", {"policies": {"timeouts": {"short": "3s"}}, "targets": {}})
HOT = resource("Configuration", "hot", {"features": [{"name": "HotReload", "enabled": True}]})
THREE = [SidecarSettings(app_id=f"app-{number}") for number in range(3)]


def one(note: str) -> dict[str, Any]:
    return component("one", "state.in-memory", note=note)


def last_words(report: Report) -> dict[str, str]:
    return {each.workload: each.evidence[-1].text for each in report.workloads}


async def test_an_old_sidecar_takes_a_change_by_a_restart_and_is_verified_by_its_fresh_process(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        assert acknowledged(await bed.deliver(one("a")))
        assert bed.sidecar.starts == 1

        report = await bed.deliver(one("b"))

        assert acknowledged(report)
        assert bed.sidecar.starts == 2
        assert "started after the write" in said_of(report, "one").evidence[-1].text
        assert "was started with the resources directory" in said_of(report, "one").evidence[-1].text


async def test_an_old_sidecar_that_may_not_restart_is_unproven_and_says_which_version_it_is(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        await bed.deliver(one("a"))

        report = await bed.deliver(one("b"), unproven=Unproven.REPORT, window_s=1)

        assert said_of(report, "one").state is State.UNPROVEN
        assert "Dapr 1.16.0 loads changes only at startup" in said_of(report, "one").evidence[-1].text
        assert bed.sidecar.starts == 1


async def test_an_old_sidecar_that_is_configured_to_reload_takes_components_while_it_runs(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        await bed.deliver(HOT, one("a"))
        process = bed.sidecar.process

        report = await bed.deliver(HOT, one("b"))

        assert acknowledged(report)
        assert bed.sidecar.process == process
        assert "same process" in said_of(report, "one").evidence[-1].text


async def test_what_an_old_sidecar_does_not_show_stays_unproven_and_nobody_waits_for_it(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        # The window is longer than the test's patience.
        report = await bed.deliver(CALM, one("a"), window_s=3600)

        assert said_of(report, "calm").state is State.UNPROVEN
        assert "Dapr 1.16.0 does not show which Resiliency" in said_of(report, "calm").evidence[-1].text
        assert said_of(report, "one").state is State.VERIFIED


async def test_a_bad_change_is_taken_back_from_an_old_sidecar_too(tmp_path: Path, daprd_1_16_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_1_16_binary) as bed:
        await bed.deliver(one("a"))

        report = await bed.deliver(component("one", "state.no-such-type"))

        assert overall(report) is State.FAILED
        assert returned(report).endswith("of delivery 1; verified")
        assert (await bed.get("/v1.0/state/one/key"))[0] == 204


async def test_a_rolling_change_restarts_one_sidecar_after_another(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, sidecars=THREE) as bed:
        await bed.deliver(one("a"))

        report = await bed.deliver(one("b"), strategy=Strategy.ROLLING)

        assert acknowledged(report)
        assert [each.starts for each in bed.sidecars] == [2, 2, 2]
        times = [each.evidence[-1].time for each in report.workloads]
        assert times == sorted(times)
        assert all("started after the write" in text for text in last_words(report).values())


async def test_a_rolling_change_leaves_alone_whom_it_does_not_concern(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary, sidecars=THREE) as bed:
        await bed.deliver(one("a"))
        scoped = component("two", "state.in-memory", scopes=["app-1"])

        assert acknowledged(await bed.deliver(one("a"), scoped, strategy=Strategy.ROLLING))

        assert [each.starts for each in bed.sidecars] == [1, 2, 1]


async def test_a_rolling_change_stops_at_the_first_sidecar_that_does_not_take_it(
    tmp_path: Path, daprd_1_16_binary: Path
) -> None:
    # An old version: what is not restarted has not loaded it either.
    async with running_agent(tmp_path, daprd_1_16_binary, sidecars=THREE) as bed:
        await bed.deliver(one("a"))

        report = await bed.deliver(component("one", "state.no-such-type"), strategy=Strategy.ROLLING)

        assert overall(report) is State.FAILED
        assert returned(report).endswith("of delivery 1; verified")
        first, *rest = report.workloads
        assert "daprd exited with code 1" in first.evidence[0].text
        assert ["not restarted: the change is not verified in app-0" in each.evidence[0].text for each in rest] == [
            True,
            True,
        ]


@pytest.fixture
async def external(
    tmp_path: Path, daprd_binary: Path, start_daprd: StartDaprd
) -> AsyncIterator[tuple[Daprd, AgentBed]]:
    """A sidecar that a test runs, and an agent that only looks at it."""
    (tmp_path / "agent" / "resources").mkdir(parents=True)
    theirs = await start_daprd(Sidecar("theirs", tmp_path / "agent" / "resources"))
    settings = SidecarSettings(
        app_id="theirs", public_port=theirs.ports["public"], metrics_port=theirs.ports["metrics"], external=True
    )
    async with running_agent(tmp_path / "agent", daprd_binary, sidecars=[settings]) as bed:
        yield theirs, bed


async def test_a_sidecar_of_others_is_verified_live_where_that_can_be_seen(external: tuple[Daprd, AgentBed]) -> None:
    theirs, bed = external
    pid = theirs.pid

    report = await bed.deliver(one("a"))

    assert acknowledged(report)
    assert f"same process {pid} before and after" in said_of(report, "one").evidence[-1].text
    assert theirs.pid == pid


async def test_a_sidecar_of_others_is_never_restarted_and_verified_once_its_owner_has_done_it(
    external: tuple[Daprd, AgentBed],
) -> None:
    theirs, bed = external
    await bed.deliver(one("a"))
    pid = theirs.pid

    report = await bed.deliver(one("a"), CALM)

    assert said_of(report, "calm").state is State.UNPROVEN
    assert said_of(report, "calm").evidence[-1].text.startswith("restart needed: ")
    assert theirs.pid == pid
    await theirs.stop()
    await theirs.start()
    healed = await bed.said(acknowledged)
    assert f"process {theirs.pid} started after the write" in said_of(healed, "calm").evidence[-1].text
    assert isinstance(bed.sidecars[0], ExternalSidecar)


async def test_a_sidecar_that_its_owner_replaces_before_it_has_shown_a_change_is_not_waited_for(
    external: tuple[Daprd, AgentBed], redis_server: Redis
) -> None:
    theirs, bed = external
    await bed.deliver()
    await redis_server.pause()
    access = {"redisHost": redis_server.address, "redisPassword": redis_server.password}
    slow = component("slow", "state.redis", **access, readTimeout="300s")
    slow["spec"]["initTimeout"] = "300s"
    # The window is longer than the test's patience.
    await bed.inbox.accept(bed.sign([slow], window_s=3600), bed.membership)
    await bed.said(lambda report: overall(report) is State.APPLIED)
    await theirs.kill()
    redis_server.resume()
    await theirs.start()

    report = await bed.said(lambda report: report.sequence == 2 and acknowledged(report))

    assert f"process {theirs.pid} started after the write" in said_of(report, "slow").evidence[-1].text
