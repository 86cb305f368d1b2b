"""Kernel facts about a process from /proc: inotify watches, listening sockets, command line.

An unreadable process yields no facts.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

_WATCH: Final = re.compile(r"^inotify wd:\S+ ino:(?P<inode>[0-9a-f]+) sdev:(?P<device>[0-9a-f]+) ", re.MULTILINE)
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_MINOR_BITS: Final = 20
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENER: Final = r"^ *\d+: [0-9A-F]+:{port:04X} [0-9A-F:]+ 0A (?:\S+ +){{5}}(\d+) "
"""A row of /proc/net/tcp in state LISTEN; the group is the inode."""


def has_watch(pid: int, directory: Path) -> bool:
    """Return whether the process has an inotify watch on this directory."""
    try:
        expected = directory.stat()
    except OSError:
        return False
    infos = _read_entries(Path(f"/proc/{pid}/fdinfo"), Path.read_text)
    found = {(int(match["inode"], 16), int(match["device"], 16)) for info in infos for match in _WATCH.finditer(info)}
    device = os.major(expected.st_dev) << _MINOR_BITS | os.minor(expected.st_dev)
    # On file systems without a block device, stat may return another device number than fdinfo.
    anonymous = os.major(expected.st_dev) == 0
    return any(inode == expected.st_ino and (anonymous or found_device == device) for inode, found_device in found)


def listening_socket(pid: int, port: int) -> int:
    """Return the inode of the socket on which the process listens on a port, or 0.

    A program that restarts within its process listens on a new socket.
    """
    listeners = _listeners(port)
    return min(listeners & open_sockets(pid), default=0) if listeners else 0


def open_sockets(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process has open."""
    links = _read_entries(Path(f"/proc/{pid}/fd"), lambda each: str(each.readlink()))
    return {int(match[1]) for match in map(_SOCKET.fullmatch, links) if match}


def listening_pid(port: int) -> int:
    """Return the pid of the process that listens on a port of this network namespace, or 0."""
    listeners = _listeners(port)
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()) if listeners else ()
    return next((pid for pid in pids if listeners & open_sockets(pid)), 0)


def _listeners(port: int) -> set[int]:
    """Return the inodes of the sockets that listen on a port of this network namespace.

    An inode is unique among all namespaces, a port is not: a container's process may listen on the same one.
    """
    row = re.compile(_LISTENER.format(port=port), re.MULTILINE)
    found: set[int] = set()
    for table in _TABLES:
        with contextlib.suppress(OSError):  # there is none without IPv6
            found.update(map(int, row.findall(table.read_text())))
    return found


def has_flag(pid: int, directory: Path, flag: str) -> bool:
    """Return whether the command line passes this directory to ``flag``, resolved as the process resolves it."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        expected = directory.stat()
    except OSError:
        return False
    return any(_is_same(pid, path, expected) for path in _values(arguments, flag))


def _read_entries(directory: Path, read: Callable[[Path], str]) -> set[str]:
    """Read each entry; entries that vanish meanwhile are skipped."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in directory.iterdir():
            with contextlib.suppress(OSError):
                found.add(read(entry))
    return found


def _values(arguments: list[str], flag: str) -> list[str]:
    joined = [word.removeprefix(f"{flag}=") for word in arguments if word.startswith(f"{flag}=")]
    return joined + [value for word, value in itertools.pairwise(arguments) if word == flag]


def _is_same(pid: int, path: str, expected: os.stat_result) -> bool:
    start = "root" if path.startswith("/") else "cwd"
    try:
        return os.path.samestat(Path(f"/proc/{pid}/{start}/{path.lstrip('/')}").stat(), expected)
    except OSError:
        return False
