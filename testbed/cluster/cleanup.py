"""Removal of what outlives a cluster's namespaces: its cgroups, the host's end of the veth pair, and files."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from testbed.cluster import machine_lock
from testbed.cluster.host import CGROUP
from testbed.cluster.machine_lock import Holder
from testbed.cluster.network import delete_host_link
from toolchain.errors import TestbedError

_HIERARCHIES = Path("/sys/fs/cgroup")
_TIMEOUT_S = 30.0
_POLL_S = 0.01


def sweep(lock: IO[str]) -> None:
    """Remove everything left by the previous cluster, whose processes have exited."""
    _remove_cluster(machine_lock.read_holder(lock))
    machine_lock.write_holder(lock, None)


def _remove_cluster(holder: Holder | None) -> None:
    delete_host_link()
    _remove_all([cgroup for cgroup in cgroups() if cgroup.exists()])
    if holder is not None:
        _remove_all([Path(holder.directory)])
        for directory in map(Path, holder.created):
            with suppress(OSError):  # another program uses it now, or it was never created
                directory.rmdir()


def cgroups() -> list[Path]:
    """Return the cluster's cgroup in each hierarchy: one in version 2, one per controller in version 1."""
    if (_HIERARCHIES / "cgroup.controllers").exists():
        return [_HIERARCHIES / CGROUP]
    return [each / CGROUP for each in _HIERARCHIES.iterdir() if each.is_dir() and not each.is_symlink()]


def create_cgroups() -> None:
    """Create the cluster's cgroups with the CPUs and memory nodes of their parents."""
    for cgroup in cgroups():
        cgroup.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cgroup, which then accepts no process
            if (cgroup / name).exists():
                (cgroup / name).write_text((cgroup.parent / name).read_text(encoding="utf-8"), encoding="utf-8")


def _remove_all(directories: list[Path]) -> None:
    """Remove directory trees; retry, since processes that were just killed may still hold them."""
    deadline = time.monotonic() + _TIMEOUT_S
    while left := [directory for directory in directories if directory.exists()]:
        for directory in left:
            _remove(directory)
        if time.monotonic() > deadline:
            raise TestbedError(f"cannot remove {left[0]}: it is still in use")
        time.sleep(_POLL_S)


def _remove(directory: Path) -> None:
    if not directory.is_relative_to(_HIERARCHIES):
        shutil.rmtree(directory, ignore_errors=True)
        return
    for path, _, _ in os.walk(directory, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()
