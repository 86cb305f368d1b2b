"""`make demo-kubernetes`: its steps, the program as a user runs it, and what it leaves behind."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from demo.cluster.__main__ import STEPS
from testbed.cluster.snapshot import Snapshot, leaks
from tests.e2e.leftovers import processes_below
from toolchain.repository import REPOSITORY


def test_the_demo_is_a_list_of_named_steps() -> None:
    assert [step.name for step in STEPS] == [
        "start-stores",
        "install-server",
        "deploy-apps",
        "configure",
        "install-agents",
        "store-orders",
        "repoint",
        "show-proof",
        "broken-change",
        "restart",
        "delete-server",
        "add-bindings",
        "repoint-binding",
    ]


@pytest.mark.soak
async def test_the_demo_prints_its_result_keeps_running_and_leaves_nothing(
    before: Snapshot, short_directory: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo.cluster"),
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(short_directory), "KEEP": "1", "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = ""
    while "Ctrl-C stops everything." not in output:
        line = await process.stdout.readline()
        assert line, output
        output += line.decode()
    (command,) = re.findall(r"curl (\S+) +# runtime-2", output)
    async with aiohttp.ClientSession() as session, session.get(command) as answer:
        assert await answer.json() == {"orderId": "bar"}
    process.send_signal(signal.SIGINT)
    output += (await process.communicate())[0].decode()

    assert process.returncode == 0, output
    assert [step.title for step in STEPS if step.title not in output] == []
    assert "\nRuntime 2 was re-pointed to Redis 1 by one central change" in output
    assert output.rstrip().splitlines()[-1].startswith("The cluster is removed, and nothing is left")
    assert processes_below(short_directory) == []
    assert list(short_directory.iterdir()) == []
    # Its directory had a longer name.
    assert await leaks(short_directory / "governor-demo", before, frozenset()) == frozenset()
