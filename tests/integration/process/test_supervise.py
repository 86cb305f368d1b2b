"""Supervised programs as real processes that receive real signals."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.process import supervise
from governor.process.child import child
from governor.process.supervise import Component, Lifecycle, Phase, run_program

TIMEOUT_S = 30.0

PROGRAM = """
import asyncio, os, sys
from governor.errors import GovernorError, Kind
from governor.process import supervise
from governor.process.telemetry import logging

log = logging.get_logger("program")

def write(word):
    # One write: the log, which is written by a thread, goes to the same pipe.
    os.write(1, f"{word}\\n".encode())

def group(name, *components):
    return supervise.Component(name, lambda: supervise.run_group(components))

def component(name, on_stop=None, body=None):
    async def run():
        write(f"{name} up")
        try:
            await (body() if body else asyncio.Event().wait())
        except asyncio.CancelledError:
            if on_stop:
                await on_stop()
            raise
        finally:
            write(f"{name} down")
    return supervise.Component(name, run)

async def slowly():
    await asyncio.sleep(0.05)

async def for_ever():
    write("cleaning up for ever")
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

async def until_exists(path):
    write("waiting")
    while not os.path.exists(path):
        await asyncio.sleep(0.01)

async def soon(error):
    await asyncio.sleep(0.05)
    if error:
        raise error

async def program():
    return await supervise.run_program([COMPONENTS], grace_s=GRACE)

logging.configure("program", stream=sys.stderr)
sys.exit(supervise.main(program))
"""


class Program:
    """A running program with its output and logs."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.logs: list[dict[str, Any]] = []
        self._changed = asyncio.Event()
        self.process: child.Child

    def on_line(self, line: str) -> None:
        if line.startswith("{"):
            self.logs.append(json.loads(line))
        else:
            self.words.append(line)
        self._changed.set()

    async def printed(self, word: str) -> None:
        while word not in self.words:
            await self._change()

    async def received(self, number: signal.Signals) -> None:
        while not any(line.get("signal") == number.name for line in self.logs):
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def logged(self, level: str) -> list[str]:
        return [line["event"] for line in self.logs if line["level"] == level]


@asynccontextmanager
async def started(components: str, grace_s: float = TIMEOUT_S) -> AsyncIterator[Program]:
    program = Program()
    text = PROGRAM.replace("COMPONENTS", components).replace("GRACE", str(grace_s))
    async with asyncio.timeout(TIMEOUT_S):
        program.process = await child.start([sys.executable, "-c", text], on_line=program.on_line)
        try:
            yield program
        finally:
            await program.process.stop(0)


@pytest.fixture
def hangup() -> Iterator[Callable[[signal.Handlers], None]]:
    """Set the SIGHUP disposition that started programs inherit, independent of how the tests were started."""
    before = signal.getsignal(signal.SIGHUP)

    def set_handler(handler: signal.Handlers) -> None:
        signal.signal(signal.SIGHUP, handler)

    yield set_handler
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_stops_the_components_in_reverse_order_with_exit_code_0(
    number: signal.Signals, hangup: Callable[[signal.Handlers], None]
) -> None:
    hangup(signal.SIG_DFL)
    async with started("component('a'), component('b', slowly), component('c', slowly)") as program:
        await program.printed("c up")
        program.process.send_signal(number)
        assert (await program.process.wait()).code == 0
    assert program.words == ["a up", "b up", "c up", "c down", "b down", "a down"]
    assert program.logged("info") == ["stopping", "stopped"]
    assert program.logs[0]["signal"] == number.name


@pytest.mark.parametrize(
    ("body", "event", "detail"),
    [
        ("lambda: soon(None)", "component ended unexpectedly", ""),
        ("lambda: soon(ValueError('odd'))", "component failed", "ValueError: odd"),
        ("lambda: soon(GovernorError(Kind.UNAVAILABLE, 'c', 'no store'))", "component failed", "no store"),
        ("lambda: soon(asyncio.CancelledError())", "component was cancelled unexpectedly", ""),
    ],
)
async def test_a_component_that_ends_is_logged_and_stops_the_program_with_exit_code_1(
    body: str, event: str, detail: str
) -> None:
    async with started(f"component('first', slowly), component('culprit', body={body})") as program:
        assert (await program.process.wait()).code == 1
    assert program.words == ["first up", "culprit up", "culprit down", "first down"]
    (error,) = (line for line in program.logs if line["level"] == "error")
    assert (error["event"], error["component"]) == (event, "culprit")
    assert detail in error.get("exception", "") + error.get("error", "")
    # Only an unexpected exception has a traceback.
    assert any("exception" in line for line in program.logs) is ("ValueError" in detail)


async def test_a_group_stops_its_components_in_reverse_order() -> None:
    inner = "group('group', component('b', slowly), component('c', slowly))"
    async with started(f"component('a'), {inner}") as program:
        await program.printed("c up")
        program.process.send_signal(signal.SIGTERM)
        assert (await program.process.wait()).code == 0
    assert program.words == ["a up", "b up", "c up", "c down", "b down", "a down"]


@pytest.mark.parametrize(
    ("culprit", "event"),
    [
        ("body=lambda: soon(None)", "component ended unexpectedly"),
        ("body=lambda: soon(GovernorError(Kind.UNAVAILABLE, 'c', 'no store'))", "component failed"),
    ],
)
async def test_a_component_of_a_group_that_ends_is_logged_by_its_name(culprit: str, event: str) -> None:
    inner = f"group('group', component('first', slowly), component('culprit', {culprit}))"
    async with started(f"component('a'), {inner}") as program:
        assert (await program.process.wait()).code == 1
    assert program.words[-3:] == ["culprit down", "first down", "a down"]
    (error,) = (line for line in program.logs if line["level"] == "error")
    assert (error["event"], error["component"]) == (event, "culprit")


async def test_an_error_while_a_group_stops_is_logged_and_changes_the_exit_code() -> None:
    inner = "group('group', component('b'), component('c', lambda: soon(OSError('disk'))))"
    async with started(f"component('a'), {inner}") as program:
        await program.printed("c up")
        program.process.send_signal(signal.SIGTERM)
        assert (await program.process.wait()).code == 1
    assert program.words[-3:] == ["c down", "b down", "a down"]
    (error,) = (line for line in program.logs if line["level"] == "error")
    assert (error["event"], error["component"]) == ("component failed", "c")


async def test_a_component_that_does_not_stop_in_time_is_logged_and_the_program_exits() -> None:
    async with started("component('good', slowly), component('stuck', for_ever)", grace_s=0.2) as program:
        await program.printed("stuck up")
        program.process.send_signal(signal.SIGTERM)
        assert (await program.process.wait()).code == 1
    assert "good down" in program.words
    (error,) = (line for line in program.logs if line["level"] == "error")
    assert error["components"] == ["stuck"]


async def test_a_second_signal_stops_at_once() -> None:
    async with started("component('good', slowly), component('stuck', for_ever)", grace_s=600) as program:
        await program.printed("stuck up")
        program.process.send_signal(signal.SIGTERM)
        await program.printed("cleaning up for ever")
        program.process.send_signal(signal.SIGINT)
        program.process.send_signal(signal.SIGINT)
        assert (await program.process.wait()).code == 1
    assert "good down" in program.words
    assert program.logged("error") == []
    hurry, end = (line for line in program.logs if line["level"] == "warning")
    assert (hurry["event"], hurry["signal"]) == ("stopping at once after a second signal", "SIGINT")
    assert (end["event"], end["components"]) == ("stopped at once, components were interrupted", ["stuck"])


async def test_a_first_signal_does_not_hurry_a_program_that_is_already_stopping(tmp_path: Path) -> None:
    slow = f"component('slow', lambda: until_exists({str(tmp_path / 'go')!r}))"
    async with started(f"{slow}, component('culprit', body=lambda: soon(None))") as program:
        await program.printed("waiting")
        program.process.send_signal(signal.SIGTERM)
        await program.received(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert (await program.process.wait()).code == 1
    assert program.words[-1] == "slow down"
    assert program.logged("warning") == []


async def test_an_ignored_hangup_does_not_stop_the_program(hangup: Callable[[signal.Handlers], None]) -> None:
    hangup(signal.SIG_IGN)
    async with started("component('a')") as program:
        await program.printed("a up")
        program.process.send_signal(signal.SIGHUP)
        program.process.send_signal(signal.SIGTERM)
        assert (await program.process.wait()).code == 0
    assert [line["signal"] for line in program.logs if line["event"] == "stopping"] == ["SIGTERM"]


async def test_an_error_while_stopping_is_logged_and_changes_the_exit_code() -> None:
    async with started("component('a'), component('b', lambda: soon(OSError('disk')))") as program:
        await program.printed("b up")
        program.process.send_signal(signal.SIGTERM)
        assert (await program.process.wait()).code == 1
    assert program.words[-1] == "a down"
    assert program.logged("error") == ["component failed"]


async def test_programs_run_on_uvloop() -> None:
    kind = "write(type(asyncio.get_running_loop()).__module__)"
    async with started(f"component('a', body=lambda: soon({kind}))") as program:
        await program.process.wait()
    assert "uvloop" in program.words


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_the_phase_follows_the_lifecycle() -> None:
    lifecycle, seen = Lifecycle(), list[Phase]()
    running = asyncio.Event()

    async def watch() -> None:
        seen.append(lifecycle.phase)
        running.set()
        try:
            await _for_ever()
        finally:
            seen.append(lifecycle.phase)

    async def fail() -> None:
        await running.wait()
        raise GovernorError(Kind.INTERNAL, "c", "enough")

    assert lifecycle.phase is Phase.STARTING
    code = await run_program(
        [Component("watch", watch), Component("fail", fail)], grace_s=TIMEOUT_S, lifecycle=lifecycle
    )
    assert code == supervise.EXIT_FAILED
    assert seen == [Phase.RUNNING, Phase.STOPPING]


async def test_a_cancelled_program_cancels_its_components() -> None:
    ended: list[str] = []

    async def component() -> None:
        try:
            await _for_ever()
        finally:
            ended.append("component")

    components: Sequence[Component] = [Component("component", component)]
    program = asyncio.create_task(run_program(components, grace_s=TIMEOUT_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    program.cancel()
    with pytest.raises(asyncio.CancelledError):
        await program
    assert ended == ["component"]
