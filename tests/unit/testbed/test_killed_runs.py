"""The next run clears what a killed one left, and touches nothing of one that goes on."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from testbed.cri.containerd import NAMESPACE
from testbed.linux.cgroups import HIERARCHIES
from testbed.waiting import until
from toolchain.wheels import REPOSITORY

LEAVING = """
import signal, subprocess

def test_leaves_something_behind(tmp_path):
    disk = tmp_path / "a disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=True)
    (tmp_path / "1/state/io.containerd.runtime.v2.task/k8s.io/{task}").mkdir(parents=True)
    names_it = ["sh", "-c", "echo $$; sleep 600; exit", tmp_path]
    with subprocess.Popen(names_it, start_new_session=True, stdout=subprocess.PIPE) as left:
        print(f"left {{left.stdout.readline().decode().strip()}} {{tmp_path}}", flush=True)
        signal.pause()
"""
LOOKING = "def test_does_nothing(): pass"


class Runs:
    """Runs of the tests as one user starts them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def start(self, program: str) -> Process:
        """Start a run in a session of its own."""
        file = self._directory / "test_program.py"
        file.write_text(program, encoding="utf-8")
        options = ["-s", "-p", "testbed.pytest_plugin", "-p", "no:cacheprovider", "-n", "0"]
        argv = [sys.executable, "-m", "pytest", *options, "--rootdir", str(self._directory), str(file)]
        surroundings = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(self._directory)}
        surroundings.pop("PYTEST_XDIST_WORKER", None)
        return await asyncio.create_subprocess_exec(
            *argv, cwd=REPOSITORY, stdout=PIPE, env=surroundings, start_new_session=True
        )

    async def look(self) -> None:
        """A run that does nothing itself."""
        printed, _ = await (await self.start(LOOKING)).communicate()
        assert b"1 passed" in printed, printed

    @asynccontextmanager
    async def leaving(self, task: str) -> AsyncIterator[tuple[Process, int, Path]]:
        """A run that goes on, the process that will outlive it, and its directory."""
        run = await self.start(LEAVING.format(task=task))
        assert run.stdout is not None
        printed = b""
        try:
            async with asyncio.timeout(60):
                while b"left " not in (line := await run.stdout.readline()):
                    assert line, printed
                    printed += line
            pid, directory = line.decode().partition("left ")[2].split()
            try:
                yield run, int(pid), Path(directory)
            except BaseException:  # the next run did not do it
                clear(int(pid), Path(directory))
                raise
        finally:
            if run.returncode is None:
                os.killpg(run.pid, signal.SIGKILL)
            await run.communicate()


def clear(pid: int, directory: Path) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    subprocess.run(["umount", directory / "a disk"], capture_output=True, check=False)


def cgroup_of(task: str) -> Path:
    """A cgroup as a pod that has named none gets it."""
    parent = HIERARCHIES if (HIERARCHIES / "cgroup.controllers").exists() else HIERARCHIES / "pids"
    cgroup = parent / NAMESPACE / task
    cgroup.mkdir(parents=True)
    return cgroup


async def test_what_a_killed_run_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    task = secrets.token_hex(32)
    cgroup = cgroup_of(task)
    runs = Runs(tmp_path)

    def left(pid: int, directory: Path) -> list[bool]:
        mounts = Path("/proc/self/mountinfo").read_text()
        return [Path("/proc", str(pid)).exists(), str(directory) in mounts, cgroup.exists()]

    async with runs.leaving(task) as (run, pid, directory):
        await runs.look()
        assert left(pid, directory) == [True, True, True], "a run that goes on was touched"
        os.killpg(run.pid, signal.SIGKILL)
        await run.wait()
        assert left(pid, directory) == [True, True, True], "there was nothing to clear"

        await runs.look()

        async def is_clear() -> bool:
            return left(pid, directory) == [False, False, False]

        await until(is_clear)
    assert (directory / "1").exists(), "its files are kept for whoever wants to read them"
    await runs.look()
    assert not directory.exists(), "pytest keeps those of three runs"
