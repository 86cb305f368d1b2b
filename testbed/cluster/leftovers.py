"""What the namespaces of a cluster do not take with them: its cgroups, the cable's end, files."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from testbed.cluster import turn
from testbed.cluster.network import unplug
from testbed.cluster.places import CGROUP
from testbed.cluster.turn import Holder
from toolchain.errors import TestbedError

_HIERARCHIES = Path("/sys/fs/cgroup")
_GONE_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.01


def sweep(lock: IO[str]) -> None:
    """Remove all that is left of the last cluster, whose processes have ended or been killed."""
    _clear(turn.read(lock))
    turn.write(lock, None)


def _clear(holder: Holder | None) -> None:
    unplug()
    _until_gone([cgroup for cgroup in cgroups() if cgroup.exists()])
    if holder is not None:
        _until_gone([Path(holder.directory)])
        for place in map(Path, holder.made):
            with suppress(OSError):  # somebody else has put something there meanwhile, or it was never made
                place.rmdir()


def cgroups() -> list[Path]:
    """The cluster's cgroup in each hierarchy, of which there is one or, in version 1, one per controller."""
    if (_HIERARCHIES / "cgroup.controllers").exists():
        return [_HIERARCHIES / CGROUP]
    return [each / CGROUP for each in _HIERARCHIES.iterdir() if each.is_dir() and not each.is_symlink()]


def make_cgroups() -> None:
    """Make them as wide as their parents."""
    for cgroup in cgroups():
        cgroup.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, and then no process may join it
            if (cgroup / name).exists():
                (cgroup / name).write_text((cgroup.parent / name).read_text(encoding="utf-8"), encoding="utf-8")


def _until_gone(directories: list[Path]) -> None:
    """Remove directories with all below them; processes that were just killed may hold them for a moment."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while left := [directory for directory in directories if directory.exists()]:
        for directory in left:
            _remove(directory)
        if time.monotonic() > deadline:
            raise TestbedError(f"{left[0]} cannot be removed; something still uses it")
        time.sleep(_LOOK_EVERY_S)


def _remove(directory: Path) -> None:
    if not directory.is_relative_to(_HIERARCHIES):
        shutil.rmtree(directory, ignore_errors=True)
        return
    for path, _, _ in os.walk(directory, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()
