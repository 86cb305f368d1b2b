"""Cleanup of what a killed test run has left on the machine, done by the next run.

Most resources end with a run, however it ends. The others are found by the run's directory: processes in their own
sessions, such as an agent's sidecars, which outlive it by design; mounts; cgroups of pods without a cgroup parent. The
directory itself is kept for its logs, until pytest removes it.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from testbed.cri.containerd import NAMESPACE
from testbed.linux.cgroups import below_hierarchies, remove

_RUNS = "pytest-of-"
# pytest writes the id of the process that uses the directory there, and keeps a killed run's file for three days.
_LOCK = "pytest-*/.lock"
_TASKS = f"state/io.containerd.runtime.v2.task/{NAMESPACE}/*"
_ESCAPED = re.compile(r"\\(\d{3})")


def clear(runs: Path) -> None:
    """Clean up after killed runs, given pytest's directory of all runs of a user."""
    if not runs.name.startswith(_RUNS):  # with --basetemp, siblings of the run's directory are unrelated
        return
    for lock in runs.glob(_LOCK):
        if not lock.parent.is_symlink() and _is_abandoned(lock):
            _clear(lock.parent)
            lock.unlink(missing_ok=True)


def _is_abandoned(lock: Path) -> bool:
    try:
        process = lock.read_text(encoding="utf-8")
    except FileNotFoundError:  # the run has just ended
        return False
    return process != "" and not Path("/proc", process).exists()


def _clear(run: Path) -> None:
    for leader in _session_leaders(run):
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
    for mount_point in reversed(list(_mounts(run))):
        subprocess.run(["umount", "--lazy", mount_point], capture_output=True, check=False)
    tasks = [task.name for depth in ("*/*", "*/*/*") for task in run.glob(f"{depth}/{_TASKS}")]
    remove(cgroup for task in tasks for cgroup in below_hierarchies(f"{NAMESPACE}/{task}"))


def _session_leaders(run: Path) -> Iterator[int]:
    """Yield session leaders whose command line names a file of the run; those with a terminal may be a user's pager."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            _, _, _, session, terminal, *_ = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has exited
            continue
        if session == process.name and terminal == "0" and f"{run}/".encode() in words:
            yield int(process.name)


def _mounts(run: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        mount_point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split()[4])
        if mount_point.startswith(f"{run}/"):
            yield mount_point
