"""The demo: its steps, and the program as a user runs it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from demo.__main__ import STEPS
from demo.scenario import NotObservedError, expect
from testbed.waiting import until
from tests.e2e.leftovers import processes_below

ROOT = Path(__file__).parents[2]


async def start_demo(tmp_path: Path, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "demo",
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def read_until(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stdout is not None
    seen = ""
    async with asyncio.timeout(120):
        while text not in seen:
            line = await process.stdout.readline()
            assert line, f"the demo ended before it printed {text!r}:\n{seen}"
            seen += line.decode()
    return seen


def test_the_demo_is_a_list_of_named_steps() -> None:
    assert [step.name for step in STEPS] == [
        "start-stores",
        "start-server",
        "configure",
        "start-runtimes",
        "store-orders",
        "show-orders",
        "repoint",
        "show-proof",
        "broken-change",
        "without-preflight",
        "restart",
        "bad-documents",
    ]


@pytest.mark.timeout(900)
async def test_the_demo_prints_its_result_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = await start_demo(tmp_path)
    output = (await process.communicate())[0].decode()

    assert process.returncode == 0, output
    assert [title for title in (step.title for step in STEPS) if title not in output] == []
    assert output.rstrip().splitlines()[-1].startswith("Runtime 2 was re-pointed to Redis 1 by one central change")
    assert processes_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_demo_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    process = await start_demo(tmp_path)
    await read_until(process, "4/")
    await until(lambda: _some(processes_below(tmp_path)))
    process.send_signal(number)
    output = (await process.communicate())[0].decode()

    assert process.returncode == 130, output
    assert processes_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


async def test_with_keep_the_demo_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    process = await start_demo(tmp_path, KEEP="1")
    output = await read_until(process, "Ctrl-C stops everything.")
    exported = next(line for line in output.splitlines() if "export GOVERNOR_SERVER=" in line)
    settings = dict(word.split("=", 1) for word in exported.split()[1:])
    listing = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "governor.cli.main",
        "get",
        "runtimes",
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.PIPE,
    )
    table = (await listing.communicate())[0].decode()
    process.send_signal(signal.SIGINT)
    await process.communicate()

    assert "runtime-1" in table
    assert "runtime-2" in table
    assert process.returncode == 0
    assert processes_below(tmp_path) == []


def test_an_unexpected_observation_fails_the_step() -> None:
    with pytest.raises(NotObservedError, match="the order: expected 'foo', observed 'bar'"):
        expect("the order", "bar", "foo")


async def _some(found: list[str]) -> bool:
    return bool(found)
