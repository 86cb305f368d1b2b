"""`make demo-kubernetes`: its steps, the program as a user runs it, and what it leaves behind."""

import asyncio
import os
import sys
from pathlib import Path

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
        "restart",
        "delete-server",
        "add-bindings",
        "repoint-binding",
    ]


@pytest.mark.soak
async def test_the_demo_prints_its_result_and_leaves_nothing(before: Snapshot, short_directory: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo.cluster"),
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(short_directory)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()

    assert process.returncode == 0, output
    assert [step.title for step in STEPS if step.title not in output] == []
    assert output.rstrip().splitlines()[-1].startswith("Runtime 2 was re-pointed to Redis 1 by one central change")
    assert processes_below(short_directory) == []
    assert list(short_directory.iterdir()) == []
    # Its directory had a longer name.
    assert await leaks(short_directory / "governor-demo", before, frozenset()) == frozenset()
