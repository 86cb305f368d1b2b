"""A change that fails in its window is taken back, once, and stays back; later failures are health. Real sidecars."""

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
from governor.agent.verification.verdicts import Process
from governor.domain.reports import Report, State, acknowledged, overall
from governor.process.flowcontrol.backoff import Backoff, Retries
from testbed.pytest_plugin import StartRedis
from testbed.redis import Redis
from testbed.waiting import until
from tests.integration.agent.bed import WINDOW_S, AgentBed, component, resource, running_agent, said_of, written

GOOD = component("one", "state.in-memory")
UNKNOWN = component("one", "state.no-such-type")
"""Daprd exits on it at once."""
OTHER = component("other", "state.in-memory")


def store(redis: Redis, **more: str) -> dict[str, Any]:
    made = component("statestore", "state.redis", redisHost=redis.address, redisPassword=redis.password, **more)
    made["spec"]["initTimeout"] = "50s"  # on a busy machine 5 s are too few to find out that nobody is there
    return made


def returned(report: Report) -> str:
    return report.workloads[0].evidence[-1].text


def is_failed(report: Report) -> bool:
    return overall(report) is State.FAILED


async def started(bed: AgentBed, number: int) -> Process | None:
    """The process of one start, while it lives."""
    process = bed.sidecar.process
    return process if process is not None and process.number == number else None


async def settled(bed: AgentBed) -> None:
    """Let the window of the newest delivery end."""

    async def look() -> bool:
        newest = bed.inbox.newest
        return newest is not None and bed.ledger.phase(newest) is DeliveryPhase.SETTLED

    bed.clock.go_on(WINDOW_S)
    bed.reconciler.add(KEY)
    await until(look)


def mortal_daprd(directory: Path, program: Path) -> tuple[Path, Path]:
    """A daprd that ends by itself, in good order, when a file appears; the program and the file."""
    trigger = directory / "die"
    script = directory / "mortal-daprd"
    script.write_text(
        "#!/bin/sh\n"
        f"wanted={shlex.quote(str(trigger))}\n"
        '( while [ ! -e "$wanted" ]; do sleep 0.02; done; rm "$wanted"; kill -TERM $$ ) &\n'
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
    script.chmod(0o700)
    return script, trigger


async def test_a_change_that_ends_the_sidecar_is_taken_back_with_all_it_added_and_said_in_the_sidecars_words(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        good = await bed.deliver(GOOD)
        report = await bed.deliver(UNKNOWN, OTHER)

        assert said_of(report, "one").state is State.FAILED
        assert "state.no-such-type" in said_of(report, "one").evidence[-1].text
        assert said_of(report, "other").state is State.RECEIVED
        assert [each.state for each in report.workloads] == [State.FAILED]
        assert returned(report) == f"rolled back to bundle {good.digest} of delivery 1; verified"
        assert [path.name for path in bed.resources.iterdir()] == ["component.one.yaml"]
        assert (await bed.get("/v1.0/state/one/key"))[0] == 204
        assert bed.ledger.trial(bed.inbox.newest) is not None  # type: ignore[arg-type]


async def test_without_anything_that_worked_the_return_is_to_nothing_and_the_sidecar_runs(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(UNKNOWN, OTHER)

        assert overall(report) is State.FAILED
        assert returned(report) == "rolled back to the empty bundle; verified"
        assert list(bed.resources.iterdir()) == []
        assert bed.sidecar.process is not None


async def test_what_failed_is_not_tried_again_by_a_new_agent_and_said_again(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as first:
        await first.deliver(GOOD)
        failed = await first.deliver(UNKNOWN, OTHER)
    before = written(first.resources / "component.one.yaml")

    async with running_agent(tmp_path, daprd_binary) as second:
        again = await second.concluded(2)

        assert again.boot != failed.boot
        assert [(each.resource, each.state) for each in again.resources] == [
            (each.resource, each.state) for each in failed.resources
        ]
        assert said_of(again, "one") == said_of(failed, "one")
        assert returned(again) == returned(failed)
        assert second.sidecar.starts == 1
        assert written(second.resources / "component.one.yaml") == before
        assert (await second.get("/v1.0/state/one/key"))[0] == 204


async def test_the_same_content_is_tried_again_only_under_a_higher_attempt(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    one, two = await start_redis(), await start_redis()
    await two.ask("HSET", "app||who", "data", json.dumps("two"), "version", "1")
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(store(one))
        await two.stop()
        failed = await bed.deliver(store(two))
        assert overall(failed) is State.FAILED
        assert "connection refused" in said_of(failed, "statestore").evidence[-1].text
        assert returned(failed).endswith("of delivery 1; verified")
        await two.start()
        starts = bed.sidecar.starts

        same = await bed.deliver(store(two))
        assert overall(same) is State.FAILED
        assert bed.sidecar.starts == starts

        assert acknowledged(await bed.deliver(store(two), attempt=2))
        assert (await bed.get("/v1.0/state/statestore/who"))[0] == 204
        assert two.address in (bed.resources / "component.statestore.yaml").read_text()


async def test_a_sidecar_that_accepts_a_change_and_then_ends_in_its_window_gets_the_old_one_back(
    tmp_path: Path, daprd_binary: Path
) -> None:
    program, trigger = mortal_daprd(tmp_path, daprd_binary)
    async with running_agent(tmp_path, program) as bed:
        await bed.deliver(GOOD)
        assert acknowledged(await bed.deliver(GOOD, OTHER))
        trigger.touch()

        report = await bed.said(lambda it: is_failed(it) and "; verified" in returned(it))

        blamed = [each for each in report.resources if each.state is State.FAILED]
        assert blamed
        assert all("daprd exited with code 0" in each.evidence[-1].text for each in blamed)
        assert "of delivery 1" in returned(report)
        assert [path.name for path in bed.resources.iterdir()] == ["component.one.yaml"]


async def test_a_sidecar_that_ends_after_the_window_is_reported_started_again_and_verified_without_a_return(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    async with running_agent(tmp_path, daprd_binary) as bed:
        verified = await bed.deliver(store(redis))
        await settled(bed)
        await redis.stop()
        assert bed.outbox.newest is verified
        assert bed.sidecar.process is not None
        os.kill(bed.sidecar.process.pid, signal.SIGTERM)

        ill = await bed.said(lambda it: is_failed(it) and "connection refused" in repr(it))
        assert (bed.resources / "component.statestore.yaml").exists()
        assert ill.sequence == 1
        await redis.start()
        assert acknowledged(await bed.said(acknowledged))
        assert bed.storage.trials() == {}


@pytest.mark.parametrize("times", [1, 2])
async def test_a_sidecar_that_somebody_killed_shows_the_change_in_its_next_process(
    tmp_path: Path, daprd_binary: Path, times: int
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(GOOD)
        first = await bed.deliver(GOOD, OTHER)
        for number in range(1, times + 1):
            process = await until(partial(started, bed, number))
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)

        report = await bed.said(lambda it: acknowledged(it) and it.n > first.n and bed.sidecar.starts == times + 1)

        assert bed.sidecar.starts == times + 1
        assert report.sequence == 2
        assert bed.storage.trials() == {}


class LongestAfter(Retries):
    """Waits that are short until the given number has passed; then the next is for who asks for it."""

    def __init__(self, number: int) -> None:
        super().__init__(Backoff(0.1, 600.0), random.Random())
        self._number = number

    def next_delay_s(self) -> float:
        drawn_s = super().next_delay_s()
        return drawn_s if self.failures <= self._number else 600.0


async def test_a_change_under_which_a_sidecar_is_killed_again_and_again_is_taken_back(
    tmp_path: Path, daprd_binary: Path
) -> None:
    # As the kernel does when memory runs out: at each start with the new component.
    script = tmp_path / "doomed-daprd"
    script.write_text(
        "#!/bin/sh\n"
        f"[ ! -e {shlex.quote(str(tmp_path / 'resources' / 'component.other.yaml'))} ] || kill -KILL $$\n"
        f'exec {shlex.quote(str(daprd_binary))} "$@"\n'
    )
    script.chmod(0o700)
    async with running_agent(tmp_path, script) as bed:
        await bed.deliver(GOOD)
        bed.sidecar._retries = LongestAfter(3)

        report = await bed.deliver(GOOD, OTHER, resource("Resiliency", "calm", {"policies": {}, "targets": {}}))

        assert "daprd was terminated by SIGKILL" in repr(report.resources)
        assert returned(report).endswith("of delivery 1; verified")
        assert bed.sidecar.starts == 1 + 4 + 1


async def test_a_return_that_fails_too_is_said_and_heals_without_another_return(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(store(redis))
        await redis.stop()
        report = await bed.deliver(component("statestore", "state.no-such-type"))
        assert "of delivery 1; failed: daprd exited with code 1" in returned(report)
        before = written(bed.resources / "component.statestore.yaml")
        await redis.start()

        healed = await bed.said(lambda it: "; verified" in returned(it))

        assert said_of(healed, "statestore") == said_of(report, "statestore")
        assert written(bed.resources / "component.statestore.yaml") == before


async def test_a_refused_delivery_changes_nothing_and_waits_for_a_higher_attempt(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(GOOD)
        foreign = bed.resources / "mine.yaml"
        foreign.write_bytes(resource_file(OTHER, "default").content)
        starts = bed.sidecar.starts

        report = await bed.deliver(GOOD, OTHER)

        assert said_of(report, "other").state is State.FAILED
        assert returned(report).startswith("stayed at bundle")
        assert returned(report).endswith("of delivery 1; verified")
        assert [each.state for each in report.workloads] == [State.RECEIVED]
        foreign.unlink()
        assert overall(await bed.deliver(GOOD, OTHER)) is State.FAILED
        assert bed.sidecar.starts == starts
        assert acknowledged(await bed.deliver(GOOD, OTHER, attempt=2))


@pytest.mark.parametrize("hours", [-30, 30])
async def test_a_wall_clock_that_jumps_neither_ends_nor_prolongs_a_window(
    hours: int, tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(GOOD)
        assert acknowledged(await bed.deliver(GOOD, OTHER))
        bed.clock.jump(hours * 3600)
        bed.reconciler.add(KEY)
        await bed.outcomes.get()
        assert bed.inbox.newest is not None
        assert bed.ledger.phase(bed.inbox.newest) is DeliveryPhase.ON_TRIAL

        report = await bed.deliver(UNKNOWN)

        assert returned(report).endswith("of delivery 2; verified")
