"""Processes that outlive their program, with real programs, on both event loops."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import uvloop

from governor.errors import GovernorError, Kind
from governor.process.child import child, detached
from governor.process.child.child import ChildExit
from testbed.waiting import until

PATIENCE_S = 20.0
ENV = {"PATH": os.environ["PATH"]}
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on one of the two event loops, within a deadline."""

    def run_scenario(scenario: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, PATIENCE_S))

    return run_scenario


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def written(log: Path) -> None:
    async def look() -> bool:
        return bool(log.read_text())

    await until(look)


def test_a_lasting_process_outlives_the_event_loop_and_is_found_again(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    records: list[tuple[int, str, int]] = []

    async def first() -> None:
        started = await detached.start(shell("echo up; exec sleep 600"), env=ENV, log_file=log)
        await written(log)
        records.append((started.pid, started.start_time, started.log_begin))
        started.release()

    async def second() -> None:
        pid, started, begin = records[0]
        found = detached.adopt(pid, started, log, begin)
        assert found is not None
        assert os.getsid(pid) == pid
        assert await found.stop(PATIENCE_S) == ChildExit(None, "SIGTERM", ("up",))
        assert detached.adopt(pid, started, log, begin) is None

    run(first())
    assert child.same_process(records[0][0], records[0][1])
    run(second())
    assert not child.same_process(records[0][0], records[0][1])


def test_of_a_process_that_is_no_child_only_the_end_is_known(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> None:
        parent = await detached.start(shell("setsid sleep 600 & echo $!; wait"), env=ENV, log_file=log)
        await written(log)
        pid = int(log.read_text())
        found = detached.adopt(pid, child.start_time(pid), log, 0)
        assert found is not None
        os.kill(pid, signal.SIGKILL)
        ended = await found.wait()
        assert (ended.code, ended.signal, ended.how) == (None, "", "ended")
        await parent.wait()

    run(scenario())


def test_the_end_of_an_own_process_is_told_with_code_or_signal_and_its_last_lines(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> None:
        left = await detached.start(shell("echo why; exit 3"), env=ENV, log_file=log)
        assert await left.wait() == ChildExit(3, "", ("why",))
        assert not left.running
        killed = await detached.start(["sleep", "600"], env=ENV, log_file=log)
        os.kill(killed.pid, signal.SIGKILL)
        assert await killed.wait() == ChildExit(None, "SIGKILL", ())

    run(scenario())


def test_one_that_ignores_the_request_is_ended_with_all_it_started(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        script = "trap '' TERM; sleep 600 & echo $!; wait; wait"
        left = await detached.start(shell(script), env=ENV, log_file=tmp_path / "log")
        await written(tmp_path / "log")
        inner = int((tmp_path / "log").read_text())
        assert (await left.stop(0.05)).signal == "SIGKILL"

        async def is_gone() -> bool:
            return not child.start_time(inner)

        await until(is_gone)

    run(scenario())


def test_another_process_with_the_same_number_is_not_taken_for_it(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        own = child.start_time(os.getpid())
        before = len(list(Path("/proc/self/fd").iterdir()))
        assert detached.adopt(os.getpid(), own + "0", tmp_path / "log", 0) is None
        assert detached.adopt(2**22 + 1, own, tmp_path / "log", 0) is None
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    run(scenario())


def test_a_program_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(GovernorError, match="/no/such/program") as caught:
            await detached.start(["/no/such/program", "secret"], env=ENV, log_file=tmp_path / "log")
        assert caught.value.kind is Kind.PRECONDITION
        assert "secret" not in str(caught.value)

    run(scenario())


def test_processes_are_found_by_a_variable_that_they_were_started_with(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        mark = str(tmp_path)
        left = await detached.start(["sleep", "600"], env={**ENV, "MARK": mark}, log_file=tmp_path / "log")

        async def found() -> list[int]:  # for a moment after its start a process shows no environment
            return list(detached.pids_with_variable("MARK", mark))

        assert await until(found) == [left.pid]
        assert list(detached.pids_with_variable("MARK", mark + "/")) == []
        await left.stop(PATIENCE_S)

    run(scenario())


def test_a_moment_and_a_start_can_be_told_apart_or_are_not_in_order(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        before = child.start_time_now()

        async def has_ticked() -> bool:
            return child.started_after(child.start_time_now(), before)

        await until(has_ticked)
        left = await detached.start(["sleep", "600"], env=ENV, log_file=tmp_path / "log")
        assert child.started_after(left.start_time, before)
        assert not child.started_after(before, left.start_time)
        assert not child.started_after(left.start_time, left.start_time)
        assert not child.started_after(left.start_time, "another-boot/1")
        assert not child.started_after(left.start_time, "")
        await left.stop(PATIENCE_S)

    run(scenario())
