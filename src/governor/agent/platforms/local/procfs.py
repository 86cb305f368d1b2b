"""What the kernel says of a process: which directories it watches and with which words it was started.

A process that cannot be looked at says nothing. These are facts about the process itself, whoever started it and
whatever was meant.
"""

import itertools
import os
import re
from pathlib import Path
from typing import Final

_WATCH: Final = re.compile(r"^inotify wd:\S+ ino:(?P<inode>[0-9a-f]+) sdev:(?P<device>[0-9a-f]+) ", re.MULTILINE)
_MINOR_BITS: Final = 20


def watches(pid: int, directory: Path) -> bool:
    """Whether the process has an inotify watch on this very directory."""
    try:
        wanted = directory.stat()
        infos = [path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir()]
    except OSError:
        return False
    found = {(int(match["inode"], 16), int(match["device"], 16)) for info in infos for match in _WATCH.finditer(info)}
    device = os.major(wanted.st_dev) << _MINOR_BITS | os.minor(wanted.st_dev)
    # Without a block device of its own a file system may give stat another device number than the kernel's.
    anonymous = os.major(wanted.st_dev) == 0
    return any(inode == wanted.st_ino and (anonymous or seen == device) for inode, seen in found)


def was_given(pid: int, directory: Path, flag: str) -> bool:
    """Whether a word of the process's command line gives this very directory to ``flag``, as the process sees it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        wanted = directory.stat()
    except OSError:
        return False
    return any(_is_same(pid, path, wanted) for path in _values(words, flag))


def _values(words: list[str], flag: str) -> list[str]:
    joined = [word.removeprefix(f"{flag}=") for word in words if word.startswith(f"{flag}=")]
    return joined + [value for word, value in itertools.pairwise(words) if word == flag]


def _is_same(pid: int, path: str, wanted: os.stat_result) -> bool:
    start = "root" if path.startswith("/") else "cwd"
    try:
        return os.path.samestat(Path(f"/proc/{pid}/{start}/{path.lstrip('/')}").stat(), wanted)
    except OSError:
        return False
