"""A leader whose process is stopped by a signal and continues later."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from governor.kube.client import Client, Transport
from governor.kube.lease import LIMITS, LeaderElector, Timing, master_status_gauge
from governor.process.clock import SystemClock
from governor.process.telemetry.instruments import Registry
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import admin_of

WITHIN_S = 120.0
TIMING = Timing(lease_duration_s=5, renew_deadline_s=4.0, retry_period_s=0.5)
CANDIDATE = """
import asyncio, pathlib, sys
from governor.process.telemetry.instruments import Registry
from governor.kube.config import kubeconfig
from governor.kube.client import Client, Transport
from governor.kube.lease import LIMITS, LeaderElector, Timing, master_status_gauge
from governor.process.telemetry import logging
from governor.process.clock import SystemClock

async def main(file, namespace):
    async with Transport() as transport:
        elector = LeaderElector(
            Client(transport, kubeconfig.load(pathlib.Path(file)), LIMITS), namespace, "leader", "child",
            clock=SystemClock(), status=master_status_gauge(Registry()), timing=Timing(5, 4.0, 0.5),
        )

        async def lead():
            # A reader callback runs before any task of this process.
            asyncio.get_running_loop().add_reader(0, lambda: (sys.stdin.readline(), report(elector.is_leader)))
            report("leading")
            try:
                await asyncio.Event().wait()
            finally:
                report("ended")

        await elector.run(lead)

def report(state):
    print(state, flush=True)

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


def _query(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"is leader?\n")


async def _forever() -> None:
    await asyncio.Event().wait()


async def test_a_stopped_process_is_not_leader_when_it_continues(
    api: ControlPlane, transport: Transport, namespace: str, tmp_path: Path, server_logs: list[Path]
) -> None:
    server_logs.append(tmp_path / "child.log")
    rival = LeaderElector(
        Client(transport, admin_of(api), LIMITS),
        namespace,
        "leader",
        "rival",
        clock=SystemClock(),
        status=master_status_gauge(Registry()),
        timing=TIMING,
    )

    async def rival_leads() -> bool:
        return rival.is_leader

    async with _child(api, namespace, tmp_path / "child.log") as child:
        assert await _line(child) == "leading"
        _query(child)
        assert await _line(child) == "True"
        running = asyncio.create_task(rival.run(_forever))
        os.kill(child.pid, signal.SIGSTOP)
        await until(rival_leads, within_s=WITHIN_S)
        _query(child)
        os.kill(child.pid, signal.SIGCONT)
        assert sorted([await _line(child), await _line(child)]) == ["False", "ended"]
        assert rival.epoch == 2
        running.cancel()
        await asyncio.wait({running})
        assert await _line(child) == "leading", "the rival released the lease"
