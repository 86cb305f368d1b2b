"""Logs of real processes: a stderr that nothing reads, and the last lines before each kind of exit."""

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

TIMEOUT_S = 60.0

PRELUDE = """
import asyncio, os, sys
from governor.process import supervise
from governor.process.telemetry import logging

logging.configure("program")
log = logging.get_logger("program")

def component(run):
    return supervise.Component("component", run)

def run(*components):
    return supervise.main(lambda: supervise.run_program(components, grace_s=30))
"""

SUPERVISED = """
async def flood():
    for number in range(5000):
        log.info("flood", number=number)
        await asyncio.sleep(0)
    print("flooded", flush=True)
    await asyncio.Event().wait()

sys.exit(run(component(flood)))
"""

UNHANDLED = """
for number in range(200):
    log.info("before", number=number)
raise ValueError("odd")
"""


@asynccontextmanager
async def started(text: str, stderr: int) -> AsyncIterator[asyncio.subprocess.Process]:
    argv = [sys.executable, "-c", PRELUDE + text]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, stderr=stderr)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def unread(text: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a program whose stderr is a full pipe that nothing reads."""
    reading, writing = os.pipe()
    try:
        size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writing, bytes(size))
        async with started(text, writing) as process:
            yield process
    finally:
        os.close(reading)
        os.close(writing)


async def ended(text: str) -> tuple[int, list[str]]:
    """Run a program to its end and return its exit code and the lines of its stderr."""
    async with started(text, asyncio.subprocess.PIPE) as process:
        _, written = await process.communicate()
        assert process.returncode is not None
        return process.returncode, written.decode().splitlines()


async def test_a_program_runs_and_stops_though_nothing_reads_its_stderr() -> None:
    async with unread(SUPERVISED) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"flooded\n"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_an_unhandled_exception_ends_a_program_though_nothing_reads_its_stderr() -> None:
    async with unread(UNHANDLED) as process:
        assert await process.wait() == 1


async def test_an_unhandled_exception_is_written_after_the_logs() -> None:
    code, lines = await ended(UNHANDLED)
    assert code == 1
    assert [json.loads(line)["number"] for line in lines[:200]] == list(range(200))
    assert lines[200] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: odd"


@pytest.mark.parametrize(
    "exit_",
    [
        "",
        "sys.exit(run(component(lambda: asyncio.sleep(0))))",
        "supervise.exit_at_once(1)",
        "from governor.process.child import exec\nimport msgspec\nexec.exec_module('platform', msgspec.Struct())",
    ],
    ids=["normal", "component", "at-once", "exec"],
)
async def test_the_last_lines_of_a_process_are_written(exit_: str) -> None:
    _, lines = await ended(f"for number in range(200):\n    log.info('last', number=number)\n{exit_}")
    assert [json.loads(line)["number"] for line in lines if '"last"' in line] == list(range(200))


async def test_what_finalizers_log_when_the_interpreter_ends_is_written() -> None:
    _, lines = await ended(
        "class Late:\n    def __del__(self):\n        log.info('late')\nlate = Late()\nlog.info('end')"
    )
    assert [json.loads(line)["event"] for line in lines] == ["end", "late"]


async def test_what_is_printed_to_stderr_keeps_its_place_among_the_logs() -> None:
    text = "log.info('a')\nprint('b', file=sys.stderr)\nlog.info('c')\nsys.stderr.write('d')\nsys.stderr.write('e\\n')"
    _, lines = await ended(text)
    assert [json.loads(line)["event"] if line.startswith("{") else line for line in lines] == ["a", "b", "c", "de"]
