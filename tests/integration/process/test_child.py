"""Child processes with real programs, some of which ignore signals, on both event loops."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import uvloop

from governor.errors import GovernorError, Kind
from governor.process.child import child
from governor.process.child.output import LINE_BYTES, TAIL_LINES
from testbed.waiting import until

TIMEOUT_S = 20.0
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]

UNSTOPPABLE = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)

ESCAPES_GROUP = """
import os, sys, time
reading, writing = os.pipe()
if os.fork():
    os.read(reading, 1)
    sys.exit(5)
os.setsid()
print(os.getpid(), flush=True)
os.write(writing, b"!")
time.sleep(600)
"""


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on one of the two event loops, within a deadline."""

    def run_scenario(scenario: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, TIMEOUT_S))

    return run_scenario


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def zombies_of(parent: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] == "Z" and int(fields[1]) == parent:
            found.append(stat.parent.name)
    return found


def test_an_exit_has_the_code_and_the_last_lines(run: Run) -> None:
    async def scenario() -> None:
        started = await child.start(shell("echo first; echo second >&2; exit 3"))
        ended = await started.wait()
        assert ended == child.ChildExit(3, "", ("first", "second"))
        assert str(ended) == "exited with code 3\n  first\n  second"
        assert not started.running

    run(scenario())


def test_lines_arrive_one_by_one_while_the_child_runs(run: Run) -> None:
    async def scenario() -> None:
        lines: asyncio.Queue[str] = asyncio.Queue()
        started = await child.start(shell("echo one; echo two; exec sleep 600"), on_line=lines.put_nowait)
        assert [await lines.get(), await lines.get()] == ["one", "two"]
        assert started.running
        assert started.tail == ("one", "two")
        assert (await started.stop(TIMEOUT_S)).signal == "SIGTERM"

    run(scenario())


def test_a_child_has_the_given_environment_and_directory_and_no_input(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        started = await child.start(shell('echo "$COLOUR $HOME"; pwd; cat'), env={"COLOUR": "red"}, cwd=tmp_path)
        assert (await started.wait()).tail == ("red ", str(tmp_path))

    run(scenario())


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(run: Run) -> None:
    async def scenario() -> None:
        up = asyncio.Event()
        started = await child.start(python(UNSTOPPABLE), on_line=lambda _line: up.set())
        await up.wait()
        assert (await started.stop(0.2)).signal == "SIGKILL"
        assert not child.same_process(started.pid, started.start_time)

    run(scenario())


def test_descendants_that_ignore_sigterm_are_killed_with_the_child(run: Run) -> None:
    async def scenario() -> None:
        lines: asyncio.Queue[str] = asyncio.Queue()
        started = await child.start(
            [*shell('"$0" -c "$1" & echo $!; exec sleep 600'), sys.executable, UNSTOPPABLE],
            on_line=lines.put_nowait,
        )
        grandchild = int(await lines.get())
        assert await lines.get() == "up"
        record = child.start_time(grandchild)
        assert (await started.stop(TIMEOUT_S)).signal == "SIGTERM"
        await until(lambda: _is_gone(grandchild, record))

    run(scenario())


def test_descendants_are_killed_when_the_child_exits(run: Run) -> None:
    async def scenario() -> None:
        lines: asyncio.Queue[str] = asyncio.Queue()
        started = await child.start(shell("sleep 600 & echo $!; exit 4"), on_line=lines.put_nowait)
        left = int(await lines.get())
        assert (await started.wait()).code == 4
        await until(lambda: _has_exited(left))

    run(scenario())


async def _has_exited(pid: int) -> bool:
    return not child.start_time(pid)


async def _is_gone(pid: int, started: str) -> bool:
    return not child.same_process(pid, started)


def test_a_descendant_outside_the_group_does_not_delay_the_exit(run: Run) -> None:
    async def scenario() -> None:
        lines: asyncio.Queue[str] = asyncio.Queue()
        started = await child.start(python(ESCAPES_GROUP), on_line=lines.put_nowait)
        escaped = int(await lines.get())
        try:
            assert (await started.wait()).code == 5
            assert child.start_time(escaped)
        finally:
            os.kill(escaped, signal.SIGKILL)

    run(scenario())


def test_a_log_file_keeps_earlier_runs_and_the_tail_does_not(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "child.log"

    async def scenario() -> None:
        for word in ("first", "second"):
            started = await child.start(shell(f"echo {word} run; exit 1"), log_file=log)
            assert (await started.wait()).tail == (f"{word} run",)

    run(scenario())
    assert log.read_text() == "first run\nsecond run\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_only_the_last_lines_are_kept_and_long_ones_are_cut(run: Run, tmp_path: Path) -> None:
    program = python(f"print(*range(1000), sep='\\n'); print('x' * {LINE_BYTES * 3}); print('end')")
    expected = (*map(str, range(1000 - TAIL_LINES + 2, 1000)), "x" * LINE_BYTES + "…", "end")

    async def scenario() -> None:
        for log in (None, tmp_path / "child.log"):
            assert (await (await child.start(program, log_file=log)).wait()).tail == expected

    run(scenario())


def test_cancelling_the_wait_does_not_stop_the_child(run: Run) -> None:
    async def scenario() -> None:
        started = await child.start(["sleep", "600"])
        waiter = asyncio.create_task(started.wait())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert child.same_process(started.pid, started.start_time)
        assert (await started.stop(TIMEOUT_S)).signal == "SIGTERM"

    run(scenario())


def test_cancelling_a_stop_kills_at_once(run: Run) -> None:
    async def scenario() -> None:
        up = asyncio.Event()
        started = await child.start(python(UNSTOPPABLE), on_line=lambda _line: up.set())
        await up.wait()
        stopping = asyncio.create_task(started.stop(600))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert (await started.wait()).signal == "SIGKILL"

    run(scenario())


def test_stopping_an_exited_child_returns_the_same_exit(run: Run) -> None:
    async def scenario() -> None:
        started = await child.start(shell("exit 7"))
        first = await started.wait()
        assert await started.stop(1) == first
        assert await started.stop(1) == first

    run(scenario())


def test_no_zombie_and_no_descriptor_is_left_behind(run: Run) -> None:
    async def scenario() -> None:
        await (await child.start(["true"])).wait()
        before = descriptors()
        for _ in range(20):
            await (await child.start(["true"])).wait()
        with pytest.raises(GovernorError):
            await child.start(["/no/such/program"])
        assert zombies_of(os.getpid()) == []
        assert descriptors() == before

    run(scenario())


@pytest.mark.parametrize("to_file", [True, False])
def test_a_program_that_cannot_start_is_named_without_its_arguments(run: Run, tmp_path: Path, to_file: bool) -> None:
    async def scenario() -> None:
        log = tmp_path / "log" if to_file else None
        with pytest.raises(GovernorError, match="cannot start /no/such/program: No such file") as caught:
            await child.start(["/no/such/program", "--password=hunter2"], log_file=log)
        assert caught.value.kind is Kind.PRECONDITION
        assert "hunter2" not in str(caught.value)

    run(scenario())


def test_a_log_file_that_cannot_be_opened_is_named(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(GovernorError, match=str(tmp_path / "absent" / "log")):
            await child.start(["true"], log_file=tmp_path / "absent" / "log")

    run(scenario())


def test_an_exception_in_the_callback_kills_the_child_and_is_raised_by_wait(run: Run) -> None:
    def broken(_line: str) -> None:
        raise RuntimeError("a bug in the callback")

    async def scenario() -> None:
        started = await child.start(shell("echo line; exec sleep 600"), on_line=broken)
        with pytest.raises(ExceptionGroup) as caught:
            await started.wait()
        assert caught.group_contains(RuntimeError, match="a bug in the callback")
        assert not child.same_process(started.pid, started.start_time)

    run(scenario())


def test_a_child_does_not_outlive_the_event_loop(run: Run) -> None:
    left: list[child.Child] = []

    async def scenario() -> None:
        left.append(await child.start(["sleep", "600"]))

    run(scenario())
    assert not child.same_process(left[0].pid, left[0].start_time)


def test_a_child_has_its_own_session_and_does_not_receive_ctrl_c(run: Run) -> None:
    async def scenario() -> None:
        started = await child.start(["sleep", "600"])
        assert os.getsid(started.pid) == started.pid
        await started.stop(TIMEOUT_S)

    run(scenario())


def test_a_pid_and_start_time_match_only_their_process() -> None:
    own = child.start_time(os.getpid())
    assert child.same_process(os.getpid(), own)
    assert not child.same_process(os.getpid(), own + "0")
    assert not child.same_process(os.getpid(), "")
    assert not child.same_process(2**22 + 1, own)
