"""Rollback on real sidecars: a change that fails in its window is rolled back; later failures are only reported."""

import json
import os
import random
import shlex
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from governor.agent.ledger import DeliveryPhase
from governor.agent.loop import KEY
from governor.agent.platforms.local.files import resource_file
from governor.agent.platforms.local.sidecars.probe import Process
from governor.domain.reports import Cause, Report, State, acknowledged, overall
from governor.process.flowcontrol.backoff import Backoff, Retries
from testbed.pytest_plugin import StartRedis
from testbed.redis import Redis
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

GOOD = component("one", "state.in-memory")
UNKNOWN = component("one", "state.no-such-type")
"""daprd exits on it immediately."""
OTHER = component("other", "state.in-memory")


def store(redis: Redis, **more: str) -> dict[str, Any]:
    made = component("statestore", "state.redis", redisHost=redis.address, redisPassword=redis.password, **more)
    made["spec"]["initTimeout"] = "50s"  # on a busy machine the default of 5 s ends before the connection is refused
    return made


def rollback_evidence(report: Report) -> str:
    return report.workloads[0].evidence[-1].text


def is_failed(report: Report) -> bool:
    return overall(report) is State.FAILED


async def started(bed: AgentBed, number: int) -> Process | None:
    """Return the process of a start number, if it is the current one."""
    process = bed.sidecar.process
    return process if process is not None and process.number == number else None


async def end_window(bed: AgentBed) -> None:
    """End the verification window of the newest delivery."""

    async def is_settled() -> bool:
        newest = bed.inbox.newest
        return newest is not None and bed.ledger.phase(newest) is DeliveryPhase.SETTLED

    bed.clock.advance(WINDOW_S)
    bed.reconciler.add(KEY)
    await until(is_settled)


def exiting_daprd(directory: Path, program: Path) -> tuple[Path, Path]:
    """Return a daprd that exits gracefully when a file appears, and that file."""
    trigger = directory / "die"
    script = directory / "exiting-daprd"
    script.write_text(
        "#!/bin/sh\n"
        f"trigger={shlex.quote(str(trigger))}\n"
        '( while [ ! -e "$trigger" ]; do sleep 0.02; done; rm "$trigger"; kill -TERM $$ ) &\n'
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
    script.chmod(0o700)
    return script, trigger


async def test_a_change_on_which_the_sidecar_exits_is_rolled_back_with_its_error_reported(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        good = await bed.deliver(GOOD)
        report = await bed.deliver(UNKNOWN, OTHER)

        assert resource_report(report, "one").state is State.FAILED
        assert "state.no-such-type" in resource_report(report, "one").all_evidence[-1].text
        assert resource_report(report, "other").state is State.RECEIVED
        assert [each.state for each in report.workloads] == [State.FAILED]
        assert rollback_evidence(report) == f"rolled back to bundle {good.digest} of delivery 1; verified"
        assert [path.name for path in bed.resources.iterdir()] == ["component.one.yaml"]
        assert (await bed.get("/v1.0/state/one/key"))[0] == 204
        assert bed.ledger.trial(bed.inbox.newest) is not None  # type: ignore[arg-type]


async def test_without_a_verified_bundle_the_rollback_removes_everything_and_the_sidecar_runs(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(UNKNOWN, OTHER)

        assert overall(report) is State.FAILED
        assert rollback_evidence(report) == "rolled back to the empty bundle; verified"
        assert list(bed.resources.iterdir()) == []
        assert bed.sidecar.process is not None


async def test_a_new_agent_reports_a_quarantined_change_again_without_applying_it(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as first:
        await first.deliver(GOOD)
        failed = await first.deliver(UNKNOWN, OTHER)
    before = fingerprint(first.resources / "component.one.yaml")

    async with running_agent(tmp_path, daprd_binary) as second:
        again = await second.final_report(2)

        assert [(each.resource, each.state) for each in again.resources] == [
            (each.resource, each.state) for each in failed.resources
        ]
        assert resource_report(again, "one") == resource_report(failed, "one")
        assert rollback_evidence(again) == rollback_evidence(failed)
        assert second.sidecar.starts == 1
        assert fingerprint(second.resources / "component.one.yaml") == before
        assert (await second.get("/v1.0/state/one/key"))[0] == 204


async def test_quarantined_content_is_applied_again_only_with_a_higher_attempt(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    one, two = await start_redis(), await start_redis()
    await two.execute("HSET", "app||who", "data", json.dumps("two"), "version", "1")
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(store(one))
        await two.stop()
        failed = await bed.deliver(store(two))
        assert overall(failed) is State.FAILED
        assert "connection refused" in resource_report(failed, "statestore").all_evidence[-1].text
        assert rollback_evidence(failed).endswith("of delivery 1; verified")
        await two.start()
        starts = bed.sidecar.starts

        same = await bed.deliver(store(two))
        assert overall(same) is State.FAILED
        assert bed.sidecar.starts == starts

        assert acknowledged(await bed.deliver(store(two), attempt=2))
        assert (await bed.get("/v1.0/state/statestore/who"))[0] == 204
        assert two.address in (bed.resources / "component.statestore.yaml").read_text()


async def test_a_verified_change_is_rolled_back_if_the_sidecar_exits_within_the_window(
    tmp_path: Path, daprd_binary: Path
) -> None:
    program, trigger = exiting_daprd(tmp_path, daprd_binary)
    async with running_agent(tmp_path, program) as bed:
        await bed.deliver(GOOD)
        assert acknowledged(await bed.deliver(GOOD, OTHER))
        trigger.touch()

        report = await bed.wait_for_report(lambda it: is_failed(it) and "; verified" in rollback_evidence(it))

        failed_resources = [each for each in report.resources if each.state is State.FAILED]
        assert {each.cause for each in failed_resources} == {Cause.CHANGE}
        assert all("daprd exited with code 0" in each.all_evidence[-1].text for each in failed_resources)
        assert "of delivery 1" in rollback_evidence(report)
        assert [path.name for path in bed.resources.iterdir()] == ["component.one.yaml"]


async def test_a_sidecar_that_exits_after_the_window_is_restarted_and_verified_without_a_rollback(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    async with running_agent(tmp_path, daprd_binary) as bed:
        verified = await bed.deliver(store(redis))
        await end_window(bed)
        await redis.stop()
        assert bed.outbox.newest is verified
        assert bed.sidecar.process is not None
        os.kill(bed.sidecar.process.pid, signal.SIGTERM)

        failed = await bed.wait_for_report(lambda it: is_failed(it) and "connection refused" in repr(it))
        assert (bed.resources / "component.statestore.yaml").exists()
        assert failed.sequence == 1
        assert {each.cause for each in failed.findings if each.state is State.FAILED} == {Cause.RUNTIME}
        await redis.start()
        assert acknowledged(await bed.wait_for_report(acknowledged))
        assert await bed.state.trials() == {}


@pytest.mark.parametrize("times", [1, 2])
async def test_a_change_is_verified_in_the_next_process_of_a_killed_sidecar(
    tmp_path: Path, daprd_binary: Path, times: int
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(GOOD)
        first = await bed.deliver(GOOD, OTHER)
        for number in range(1, times + 1):
            process = await until(partial(started, bed, number))
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)

        report = await bed.wait_for_report(
            lambda it: acknowledged(it) and it.n > first.n and bed.sidecar.starts == times + 1
        )

        assert bed.sidecar.starts == times + 1
        assert report.sequence == 2
        assert await bed.state.trials() == {}


class BlockAfter(Retries):
    """Retries with short delays up to a number of failures, then one that only an explicit start interrupts."""

    def __init__(self, number: int) -> None:
        super().__init__(Backoff(0.1, 600.0), random.Random())
        self._number = number

    def next_delay_s(self) -> float:
        delay_s = super().next_delay_s()
        return delay_s if self.failures <= self._number else 600.0


async def test_a_change_under_which_the_sidecar_is_killed_repeatedly_is_rolled_back(
    tmp_path: Path, daprd_binary: Path
) -> None:
    # Like the OOM killer: at each start with the new component.
    script = tmp_path / "killed-daprd"
    script.write_text(
        "#!/bin/sh\n"
        f"[ ! -e {shlex.quote(str(tmp_path / 'resources' / 'component.other.yaml'))} ] || kill -KILL $$\n"
        f'exec {shlex.quote(str(daprd_binary))} "$@"\n'
    )
    script.chmod(0o700)
    async with running_agent(tmp_path, script) as bed:
        await bed.deliver(GOOD)
        bed.sidecar._retries = BlockAfter(3)

        report = await bed.deliver(GOOD, OTHER, resource("Resiliency", "calm", {"policies": {}, "targets": {}}))

        assert "daprd was terminated by SIGKILL" in repr(report.resources)
        assert rollback_evidence(report).endswith("of delivery 1; verified")
        assert bed.sidecar.starts == 1 + 4 + 1


async def test_a_failed_rollback_is_reported_and_recovers_without_another_rollback(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(store(redis))
        await redis.stop()
        report = await bed.deliver(component("statestore", "state.no-such-type"))
        assert "of delivery 1; failed: daprd exited with code 1" in rollback_evidence(report)
        before = fingerprint(bed.resources / "component.statestore.yaml")
        await redis.start()

        recovered = await bed.wait_for_report(lambda it: "; verified" in rollback_evidence(it))

        assert resource_report(recovered, "statestore") == resource_report(report, "statestore")
        assert fingerprint(bed.resources / "component.statestore.yaml") == before


async def test_a_rejected_delivery_changes_nothing_until_a_higher_attempt(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(GOOD)
        foreign = bed.resources / "mine.yaml"
        foreign.write_bytes(resource_file(OTHER, "default").content)
        starts = bed.sidecar.starts

        report = await bed.deliver(GOOD, OTHER)

        assert resource_report(report, "other").state is State.FAILED
        assert rollback_evidence(report).startswith("stayed at bundle")
        assert rollback_evidence(report).endswith("of delivery 1; verified")
        assert [each.state for each in report.workloads] == [State.RECEIVED]
        foreign.unlink()
        assert overall(await bed.deliver(GOOD, OTHER)) is State.FAILED
        assert bed.sidecar.starts == starts
        assert acknowledged(await bed.deliver(GOOD, OTHER, attempt=2))


async def test_a_wall_clock_jump_neither_ends_nor_extends_a_window(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(GOOD)
        assert acknowledged(await bed.deliver(GOOD, OTHER))
        assert bed.inbox.newest is not None
        for hours in (-30, 60):
            bed.clock.jump(hours * 3600)
            bed.reconciler.add(KEY)
            await bed.outcomes.get()
            assert bed.ledger.phase(bed.inbox.newest) is DeliveryPhase.ON_TRIAL

        report = await bed.deliver(UNKNOWN)

        assert rollback_evidence(report).endswith("of delivery 2; verified")
