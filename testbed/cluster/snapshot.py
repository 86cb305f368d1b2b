"""A snapshot of cluster resources on the host, compared before and after a cluster to find leaks.

Network, mounts, cgroups and fixed paths are recorded completely. Processes and namespaces are recorded only if they
refer to one cluster's directory, since unrelated processes come and go.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from testbed.cluster import machine_lock
from testbed.cluster.cleanup import cgroups
from testbed.cluster.host import CGROUP, KERNEL_SETTINGS, PRIVATE
from testbed.waiting import until

Snapshot = frozenset[str]
"""One line of text per resource."""
_LOCK_TIMEOUT_S = 600.0
_CLEAN_WITHIN_S = 120.0
"""A snapshot has all mounts of the host, and other tests create some for a while."""
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")


def take_snapshot(state: Path) -> Snapshot:
    """Return the resources of the cluster with this state directory, and those at paths that any cluster uses."""
    return frozenset([*_network(), *_mounts(), *_cgroups(), *_files(state), *_settings(), *_processes(state)])


def namespaces(state: Path) -> frozenset[str]:
    """Return the namespaces of the cluster's processes, without the host's."""
    own = {_link(Path("/proc/self/ns") / kind) for kind in _NAMESPACES}
    entered = {_link(process / "ns" / kind) for process in _cluster_processes(state) for kind in _NAMESPACES}
    return frozenset(entered - own - {""})


def namespaces_in_use(candidates: frozenset[str], since_boot_s: float) -> frozenset[str]:
    """Return the candidates that a process started before ``since_boot_s`` is in, has open or has mounted.

    Later processes are ignored: the kernel reuses the inode numbers of deleted namespaces.
    """
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        if _started(process) < since_boot_s:
            found |= {_link(process / "ns" / kind) for kind in _NAMESPACES}
            found |= {_link(file) for file in _children(process / "fd")}
            found |= {each for each in candidates if each in _text(process / "mountinfo")}
    return candidates & found


async def leaks(
    state: Path, before: Snapshot, entered: frozenset[str], notify: machine_lock.Notify = print
) -> Snapshot:
    """Return the resources that remain after a cluster has ended; ``entered`` are its namespaces from before."""
    leaked: Snapshot = frozenset()
    with await machine_lock.acquire(notify, _LOCK_TIMEOUT_S):  # no other cluster runs meanwhile
        ended_at = time.clock_gettime(time.CLOCK_BOOTTIME)

        async def is_clean() -> bool:
            nonlocal leaked
            leaked = (take_snapshot(state) - before) | namespaces_in_use(entered, ended_at)
            return not leaked

        with suppress(TimeoutError):  # killed processes exit a moment later; the caller checks the remainder
            await until(is_clean, within_s=_CLEAN_WITHIN_S)
    return leaked


def _network() -> Iterator[str]:
    for argv in (["ip", "-brief", "link"], ["ip", "route"], ["nft", "list", "tables"]):
        printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        yield from (f"{' '.join(argv)}: {line.strip()}" for line in printed.splitlines())


def _mounts() -> Iterator[str]:
    for line in _text(Path("/proc/self/mountinfo")).splitlines():
        yield f"mount: {' '.join(line.split()[3:])}"


def _cgroups() -> Iterator[str]:
    for group in cgroups():
        yield from (f"cgroup: {path}" for path in (group, *group.rglob("*/")) if path.exists())


def _files(state: Path) -> Iterator[str]:
    for directory in (state, *map(Path, PRIVATE)):
        yield from (f"file: {path}" for path in (directory, *directory.glob("*")) if path.exists())


def _settings() -> Iterator[str]:
    for name in KERNEL_SETTINGS:
        yield f"kernel setting: {name} {_text(Path('/proc/sys') / name).strip()}"


def _processes(state: Path) -> Iterator[str]:
    for process in _cluster_processes(state):
        yield f"process: {process.name} {_text(process / 'cmdline').replace(chr(0), ' ')}"


def _cluster_processes(state: Path) -> Iterator[Path]:
    """Yield the cluster's processes, recognized by command line, cgroup or mounts."""
    for process in Path("/proc").glob("[0-9]*"):
        described = _text(process / "cmdline") + _text(process / "mountinfo")
        if str(state) in described or f"/{CGROUP}/" in _text(process / "cgroup"):
            yield process


def _started(process: Path) -> float:
    """Return a process's start in seconds since boot; infinity if it has exited."""
    fields = _text(process / "stat").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else float("inf")


def _children(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    """Return a file's text; empty if its process has exited."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""
