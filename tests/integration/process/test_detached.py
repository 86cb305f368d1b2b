"""Detached processes, with real programs, on both event loops."""

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

TIMEOUT_S = 20.0
ENV = {"PATH": os.environ["PATH"]}
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on one of the two event loops, within a deadline."""

    def run_scenario(scenario: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, TIMEOUT_S))

    return run_scenario


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def written(log: Path) -> None:
    async def has_text() -> bool:
        return bool(log.read_text())

    await until(has_text)


def test_a_detached_process_outlives_the_event_loop_and_is_adopted(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    records: list[tuple[int, str, int]] = []

    async def first() -> None:
        started = await detached.start(shell("echo up; exec sleep 600"), env=ENV, log_file=log)
        await written(log)
        records.append((started.pid, started.start_time, started.log_begin))
        started.release()

    async def second() -> None:
        pid, started, begin = records[0]
        adopted = detached.adopt(pid, started, log, begin)
        assert adopted is not None
        assert os.getsid(pid) == pid
        assert await adopted.stop(TIMEOUT_S) == ChildExit(None, "SIGTERM", ("up",))
        assert detached.adopt(pid, started, log, begin) is None

    run(first())
    assert child.same_process(records[0][0], records[0][1])
    run(second())
    assert not child.same_process(records[0][0], records[0][1])


def test_the_exit_code_of_a_process_that_is_no_child_is_unknown(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> None:
        parent = await detached.start(shell("setsid sleep 600 & echo $!; wait"), env=ENV, log_file=log)
        await written(log)
        pid = int(log.read_text())
        adopted = detached.adopt(pid, child.start_time(pid), log, 0)
        assert adopted is not None
        os.kill(pid, signal.SIGKILL)
        ended = await adopted.wait()
        assert (ended.code, ended.signal, ended.summary) == (None, "", "ended")
        await parent.wait()

    run(scenario())


def test_the_exit_of_a_child_has_its_code_or_signal_and_its_last_lines(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> None:
        started = await detached.start(shell("echo why; exit 3"), env=ENV, log_file=log)
        assert await started.wait() == ChildExit(3, "", ("why",))
        assert not started.running
        killed = await detached.start(["sleep", "600"], env=ENV, log_file=log)
        os.kill(killed.pid, signal.SIGKILL)
        assert await killed.wait() == ChildExit(None, "SIGKILL", ())

    run(scenario())


def test_a_process_that_ignores_sigterm_is_killed_with_its_descendants(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        script = "trap '' TERM; sleep 600 & echo $!; wait; wait"
        started = await detached.start(shell(script), env=ENV, log_file=tmp_path / "log")
        await written(tmp_path / "log")
        inner = int((tmp_path / "log").read_text())
        assert (await started.stop(0.05)).signal == "SIGKILL"

        async def is_gone() -> bool:
            return not child.start_time(inner)

        await until(is_gone)

    run(scenario())


def test_a_process_with_a_reused_pid_is_not_adopted(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        own = child.start_time(os.getpid())
        before = len(list(Path("/proc/self/fd").iterdir()))
        assert detached.adopt(os.getpid(), own + "0", tmp_path / "log", 0) is None
        assert detached.adopt(2**22 + 1, own, tmp_path / "log", 0) is None
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    run(scenario())


def test_a_missing_program_is_named(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(GovernorError, match="/no/such/program") as caught:
            await detached.start(["/no/such/program", "secret"], env=ENV, log_file=tmp_path / "log")
        assert caught.value.kind is Kind.PRECONDITION
        assert "secret" not in str(caught.value)

    run(scenario())


def test_processes_are_found_by_an_environment_variable(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        mark = str(tmp_path)
        started = await detached.start(["sleep", "600"], env={**ENV, "MARK": mark}, log_file=tmp_path / "log")

        async def found() -> list[int]:  # just after its start a process has no environment yet
            return list(detached.pids_with_variable("MARK", mark))

        assert await until(found) == [started.pid]
        assert list(detached.pids_with_variable("MARK", mark + "/")) == []
        await started.stop(TIMEOUT_S)

    run(scenario())


def test_start_times_are_compared_within_one_boot(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        before = child.start_time_now()

        async def clock_ticked() -> bool:
            return child.started_after(child.start_time_now(), before)

        await until(clock_ticked)
        started = await detached.start(["sleep", "600"], env=ENV, log_file=tmp_path / "log")
        assert child.started_after(started.start_time, before)
        assert not child.started_after(before, started.start_time)
        assert not child.started_after(started.start_time, started.start_time)
        assert not child.started_after(started.start_time, "another-boot/1")
        assert not child.started_after(started.start_time, "")
        await started.stop(TIMEOUT_S)

    run(scenario())


def test_a_detached_process_inherits_the_given_descriptors_only(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        other_reading, other_writing = os.pipe()
        script = f"echo given > /proc/self/fd/{writing}; echo other > /proc/self/fd/{other_writing}"
        process = await detached.start(shell(script), env=ENV, descriptors=[writing], log_file=tmp_path / "log")
        os.close(writing)
        os.close(other_writing)
        assert os.read(reading, 100) == b"given\n"
        assert os.read(other_reading, 100) == b""
        assert (await process.wait()).code != 0
        os.close(reading)
        os.close(other_reading)

    run(scenario())


def test_without_a_log_file_the_output_goes_where_that_of_this_process_goes(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        process = await detached.start(shell("echo out; echo err >&2"), env=ENV)
        assert (await process.wait()).tail == ()

    run(scenario())
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")
