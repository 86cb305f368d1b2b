"""A test run cleans up after a killed run, and does not touch a running one."""

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
from testbed.linux import killed_runs
from testbed.linux.cgroups import HIERARCHIES
from testbed.waiting import until
from toolchain.repository import REPOSITORY

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
EMPTY = "def test_does_nothing(): pass"


class Runs:
    """Test runs of one user."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def start(self, program: str) -> Process:
        """Start a run in a new session."""
        file = self._directory / "test_program.py"
        file.write_text(program, encoding="utf-8")
        options = ["-s", "-p", "testbed.pytest_plugin", "-p", "no:cacheprovider", "-n", "0"]
        argv = [sys.executable, "-m", "pytest", *options, "--rootdir", str(self._directory), str(file)]
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": str(self._directory)}
        environment.pop("PYTEST_XDIST_WORKER", None)
        return await asyncio.create_subprocess_exec(
            *argv, cwd=REPOSITORY, stdout=PIPE, env=environment, start_new_session=True
        )

    async def run_empty(self) -> None:
        """Run a test that does nothing."""
        printed, _ = await (await self.start(EMPTY)).communicate()
        assert b"1 passed" in printed, printed

    @asynccontextmanager
    async def leaving(self, task: str) -> AsyncIterator[tuple[Process, int, Path]]:
        """Yield a running test run, a process that outlives it, and its directory."""
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
            except BaseException:  # the next run has not cleaned up
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
    """Create the cgroup that containerd chooses for a pod without a cgroup parent."""
    parent = HIERARCHIES if (HIERARCHIES / "cgroup.controllers").exists() else HIERARCHIES / "pids"
    cgroup = parent / NAMESPACE / task
    cgroup.mkdir(parents=True)
    return cgroup


async def test_a_run_cleans_up_after_a_killed_run(tmp_path: Path) -> None:
    task = secrets.token_hex(32)
    cgroup = cgroup_of(task)
    runs = Runs(tmp_path)

    def left(pid: int, directory: Path) -> list[bool]:
        mounts = Path("/proc/self/mountinfo").read_text()
        return [Path("/proc", str(pid)).exists(), str(directory) in mounts, cgroup.exists()]

    async with runs.leaving(task) as (run, pid, directory):
        killed_runs.clear(directory.parent.parent)
        assert left(pid, directory) == [True, True, True], "resources of a running run were removed"
        os.killpg(run.pid, signal.SIGKILL)
        await run.wait()
        assert left(pid, directory) == [True, True, True], "there was nothing to clean up"

        await runs.run_empty()

        async def is_clear() -> bool:
            return left(pid, directory) == [False, False, False]

        await until(is_clear)
    assert (directory / "1").exists(), "its files are kept for reading"
    assert not (directory.parent / ".lock").exists(), "pytest would not delete its directory after three runs"
