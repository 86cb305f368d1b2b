"""The demos in a cluster: their steps, the programs as a user runs them, and what they leave behind."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

from demo import cluster, reconciler
from demo.cluster.__main__ import STEPS
from demo.reconciler.__main__ import STEPS as RECONCILER_STEPS
from demo.steps import Step
from testbed.cluster.cluster import run
from testbed.cluster.snapshot import Snapshot, leaks
from tests.e2e.leftovers import processes_below
from toolchain.repository import REPOSITORY


class Play:
    """A demo that keeps running at its end until it is interrupted."""

    def __init__(self, package: str, directory: Path) -> None:
        self._package = package
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self.output = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.communicate()

    async def kept(self) -> None:
        """Start the demo, and return when it has played all steps and keeps running."""
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._package),
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(self._directory), "KEEP": "1", "PYTHONUNBUFFERED": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        while "Ctrl-C stops everything." not in self.output:
            line = await process.stdout.readline()
            assert line, self.output
            self.output += line.decode()

    async def leaves_nothing(self, steps: Sequence[Step[Any]], before: Snapshot) -> None:
        """Interrupt the demo: it was played completely, and nothing of it is left."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self.output += (await self._process.communicate())[0].decode()
        assert self._process.returncode == 0, self.output
        assert [step.title for step in steps if step.title not in self.output] == []
        assert self.output.rstrip().splitlines()[-1].startswith("The cluster is removed, and nothing is left")
        assert processes_below(self._directory) == []
        assert list(self._directory.iterdir()) == []
        # Its directory had a longer name.
        assert await leaks(self._directory / "governor-demo", before, frozenset()) == frozenset()


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


def test_the_demo_of_the_reconciler_is_a_list_of_named_steps() -> None:
    assert [step.name for step in RECONCILER_STEPS] == [
        "bootstrap",
        "install",
        "upgrade",
        "repair",
        "refuse",
        "break",
        "correct",
        "break-itself",
        "rest",
        "wake",
        "remove",
    ]


@pytest.mark.soak
async def test_the_demo_prints_its_result_keeps_running_and_leaves_nothing(
    before: Snapshot, short_directory: Path
) -> None:
    async with Play(cluster.__name__, short_directory) as play:
        await play.kept()
        (command,) = re.findall(r"curl (\S+) +# runtime-2", play.output)
        async with aiohttp.ClientSession() as session, session.get(command) as answer:
            assert await answer.json() == {"orderId": "bar"}
        await play.leaves_nothing(STEPS, before)
    assert "\nRuntime 2 was re-pointed to Redis 1 by one central change" in play.output


@pytest.mark.soak
async def test_the_demo_of_the_reconciler_shows_each_state_and_leaves_nothing(
    before: Snapshot, short_directory: Path, tmp_path: Path
) -> None:
    async with Play(reconciler.__name__, short_directory) as play:
        await play.kept()
        (kubeconfig,) = re.findall(r"export KUBECONFIG=(\S+)", play.output)
        (kubectl,) = re.findall(r"(/\S+) get governor ", play.output)
        where = ("gcl/local", "--namespace=runtime-governor", "--output=jsonpath={.status.state} {.status.ready}")
        shown = await run([kubectl, "get", *where], environment={"KUBECONFIG": kubeconfig, "HOME": str(tmp_path)})
        assert shown == "Ready 1/1"
        await play.leaves_nothing(RECONCILER_STEPS, before)
    states = re.findall(r"^    State: (.*) modules ready$", play.output, re.MULTILINE)
    assert states == [
        *("Ready, 1/1", *["Ready, 4/4"] * 4),
        *("Error, 3/4", "Ready, 4/4", "Error, 3/4", *["Ready, 4/4"] * 3),
        "Ready, 1/1",
    ]
