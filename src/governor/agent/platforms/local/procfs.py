"""What the kernel says of a process: which directories it watches and with which words it was started.

A process that cannot be looked at says nothing. These are facts about the process itself, whoever started it and
whatever was meant.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

_WATCH: Final = re.compile(r"^inotify wd:\S+ ino:(?P<inode>[0-9a-f]+) sdev:(?P<device>[0-9a-f]+) ", re.MULTILINE)
_MINOR_BITS: Final = 20
_LISTENING: Final = "0A"


def has_watch(pid: int, directory: Path) -> bool:
    """Whether the process has an inotify watch on this very directory."""
    try:
        wanted = directory.stat()
    except OSError:
        return False
    infos = _each(Path(f"/proc/{pid}/fdinfo"), Path.read_text)
    found = {(int(match["inode"], 16), int(match["device"], 16)) for info in infos for match in _WATCH.finditer(info)}
    device = os.major(wanted.st_dev) << _MINOR_BITS | os.minor(wanted.st_dev)
    # Without a block device of its own a file system may give stat another device number than the kernel's.
    anonymous = os.major(wanted.st_dev) == 0
    return any(inode == wanted.st_ino and (anonymous or seen == device) for inode, seen in found)


def listening_socket(pid: int, port: int) -> int:
    """The kernel's number of the socket with which the process listens on a port; 0 when it does not.

    A program that starts anew inside its process listens on a new socket.
    """
    try:
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:
        return 0
    held = _each(Path(f"/proc/{pid}/fd"), lambda each: str(each.readlink()))
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    numbers = [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]
    return next((int(number) for number in numbers if f"socket:[{number}]" in held), 0)


def listening_pid(port: int) -> int:
    """The process that listens on a port of this machine; 0 when none can be seen."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return next((pid for pid in pids if listening_socket(pid, port)), 0)


def has_flag(pid: int, directory: Path, flag: str) -> bool:
    """Whether a word of the process's command line gives this very directory to ``flag``, as the process sees it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        wanted = directory.stat()
    except OSError:
        return False
    return any(_is_same(pid, path, wanted) for path in _values(words, flag))


def _each(directory: Path, read: Callable[[Path], str]) -> set[str]:
    """What is read of each entry; a process opens and closes files all the time, so any may be gone already."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in directory.iterdir():
            with contextlib.suppress(OSError):
                found.add(read(entry))
    return found


def _values(words: list[str], flag: str) -> list[str]:
    joined = [word.removeprefix(f"{flag}=") for word in words if word.startswith(f"{flag}=")]
    return joined + [value for word, value in itertools.pairwise(words) if word == flag]


def _is_same(pid: int, path: str, wanted: os.stat_result) -> bool:
    start = "root" if path.startswith("/") else "cwd"
    try:
        return os.path.samestat(Path(f"/proc/{pid}/{start}/{path.lstrip('/')}").stat(), wanted)
    except OSError:
        return False
