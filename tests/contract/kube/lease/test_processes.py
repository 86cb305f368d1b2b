"""A leader whose process is stopped for a while, and does not know it when it goes on."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from governor.kube.client import Client, Transport
from governor.kube.lease.candidate import Timing
from governor.kube.lease.elector import LIMITS, Election, master_status
from governor.process.clock import SystemClock
from governor.process.telemetry.instruments import Registry
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import admin_of

WITHIN_S = 120.0
TIMING = Timing(lease_s=10, renew_deadline_s=8.0, retry_s=0.5)
CANDIDATE = """
import asyncio, pathlib, sys
from governor.process.telemetry.instruments import Registry
from governor.kube.config import kubeconfig
from governor.kube.client import Client, Transport
from governor.kube.lease.candidate import Timing
from governor.kube.lease.elector import LIMITS, Election, master_status
from governor.process.telemetry import logging
from governor.process.clock import SystemClock

async def main(file, namespace):
    async with Transport() as transport:
        election = Election(
            Client(transport, kubeconfig.load(pathlib.Path(file)), LIMITS), namespace, "leader", "child",
            clock=SystemClock(), status=master_status(Registry()), timing=Timing(10, 8.0, 0.5),
        )

        async def lead():
            # Asked before anything else of this process can run.
            asyncio.get_running_loop().add_reader(0, lambda: (sys.stdin.readline(), say(election.is_leader)))
            say("leading")
            try:
                await asyncio.Event().wait()
            finally:
                say("ended")

        await election.run(lead)

def say(what):
    print(what, flush=True)

logging.configure("candidate")
asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def _child(plane: ControlPlane, namespace: str, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, "-c", CANDIDATE, str(plane.kubeconfig), namespace]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        return (await process.stdout.readline()).decode().strip()


def _ask(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"do you lead?\n")


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_process_that_was_stopped_says_no_as_soon_as_it_goes_on(
    api: ControlPlane, transport: Transport, namespace: str, tmp_path: Path, server_logs: list[Path]
) -> None:
    server_logs.append(tmp_path / "child.log")
    rival = Election(
        Client(transport, admin_of(api), LIMITS),
        namespace,
        "leader",
        "rival",
        clock=SystemClock(),
        status=master_status(Registry()),
        timing=TIMING,
    )

    async def rival_leads() -> bool:
        return rival.is_leader

    async with _child(api, namespace, tmp_path / "child.log") as child:
        assert await _line(child) == "leading"
        _ask(child)
        assert await _line(child) == "True"
        running = asyncio.create_task(rival.run(_for_ever))
        os.kill(child.pid, signal.SIGSTOP)
        await until(rival_leads, within_s=WITHIN_S)
        _ask(child)
        os.kill(child.pid, signal.SIGCONT)
        assert sorted([await _line(child), await _line(child)]) == ["False", "ended"]
        assert rival.epoch == 2
        running.cancel()
        await asyncio.wait({running})
        assert await _line(child) == "leading", "the rival gave the lease back"
