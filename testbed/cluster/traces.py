"""What can be seen of clusters on a machine, to be compared before and after one.

The network, mounts, cgroups and fixed places are looked at as a whole. Of processes and their namespaces only those
count that have to do with one cluster's directory, for other processes come and go meanwhile.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from testbed.cluster.leftovers import cgroups
from testbed.cluster.places import CGROUP, KERNEL_SETTINGS, PRIVATE

Traces = frozenset[str]
"""One line of text for each thing that was found."""
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")


def look(state: Path) -> Traces:
    """All that there is now, of the cluster with these files and at the places that any uses."""
    return frozenset([*_network(), *_mounts(), *_cgroups(), *_files(state), *_settings(), *_processes(state)])


def namespaces(state: Path) -> frozenset[str]:
    """The namespaces in which that cluster's processes live, without the machine's own."""
    own = {_link(Path("/proc/self/ns") / kind) for kind in _NAMESPACES}
    inhabited = {_link(process / "ns" / kind) for process in _of(state) for kind in _NAMESPACES}
    return frozenset(inhabited - own - {""})


def inhabited(candidates: frozenset[str], since_boot_s: float) -> frozenset[str]:
    """Those of the namespaces that a process lives in, has open or has mounted that was there at that time.

    Later ones do not count: the kernel gives the numbers of namespaces that have ended to new ones.
    """
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        if _started(process) < since_boot_s:
            found |= {_link(process / "ns" / kind) for kind in _NAMESPACES}
            found |= {_link(file) for file in _children(process / "fd")}
            found |= {each for each in candidates if each in _text(process / "mountinfo")}
    return candidates & found


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
    for place in (state, *map(Path, PRIVATE)):
        yield from (f"file: {path}" for path in (place, *place.glob("*")) if path.exists())


def _settings() -> Iterator[str]:
    for name in KERNEL_SETTINGS:
        yield f"kernel setting: {name} {_text(Path('/proc/sys') / name).strip()}"


def _processes(state: Path) -> Iterator[str]:
    for process in _of(state):
        yield f"process: {process.name} {_text(process / 'cmdline').replace(chr(0), ' ')}"


def _of(state: Path) -> Iterator[Path]:
    """Processes that belong to the cluster: by their command, their cgroup, or what they have mounted."""
    for process in Path("/proc").glob("[0-9]*"):
        told = _text(process / "cmdline") + _text(process / "mountinfo")
        if str(state) in told or f"/{CGROUP}/" in _text(process / "cgroup"):
            yield process


def _started(process: Path) -> float:
    """Seconds since the machine's start; never, if it has gone."""
    fields = _text(process / "stat").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else float("inf")


def _children(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    """What a file says; nothing if its process has gone."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""
