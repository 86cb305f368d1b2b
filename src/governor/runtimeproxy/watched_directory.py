"""A directory whose files are polled: of plugins and of policies. Their formats are defined elsewhere."""

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from governor.process.clock import Clock
from governor.process.telemetry import logging

FILE_LIMIT_BYTES: Final = 1024 * 1024
POLICY_SUFFIXES: Final = (".yaml", ".yml")
_POLL_S: Final = 0.5

Stamp: TypeAlias = tuple[int, int, int]
Contents: TypeAlias = dict[str, bytes | OSError]

_log = logging.get_logger(__name__)


class WatchedDirectory:
    """Calls ``changed`` with the content of all files that end with one of the suffixes, whenever any has changed."""

    def __init__(
        self, path: Path, suffixes: tuple[str, ...], changed: Callable[[Contents], None], clock: Clock
    ) -> None:
        self._path = path
        self._suffixes = suffixes
        self._changed = changed
        self._clock = clock
        self._stamps: dict[str, Stamp] = {}
        self._last_error = ""

    async def run(self) -> None:
        """Poll the directory until cancelled."""
        while True:
            await self._clock.sleep(_POLL_S)
            await self.poll()

    async def poll(self) -> None:
        """Read the files if any has changed; whatever fails, all stays as it is and the next poll tries again."""
        try:
            await self._read()
        except OSError as error:
            self._log_once(f"{self._path}: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - a defect of the reader must not end the program
            self._log_once(f"{self._path}: {error!r}", exc_info=error)
        else:
            self._last_error = ""

    async def _read(self) -> None:
        stamps = await asyncio.to_thread(stamps_in, self._path, self._suffixes)
        if stamps == self._stamps:
            return
        contents = await asyncio.to_thread(contents_of, self._path, stamps)
        self._changed(contents)
        self._stamps = stamps

    def _log_once(self, error: str, **details: object) -> None:
        if error != self._last_error:
            _log.warning("cannot read a directory; what was read before stays in force", error=error, **details)
        self._last_error = error


def stamps_in(directory: Path, suffixes: tuple[str, ...]) -> dict[str, Stamp]:
    """Return the files with a stamp that changes with the file; a missing directory has none."""
    try:
        with os.scandir(directory) as entries:
            return {each.name: _stamp(each) for each in entries if each.name.endswith(suffixes)}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def contents_of(directory: Path, names: Iterable[str]) -> Contents:
    """Return the content of each file, or the error of reading it; files that have been deleted are left out."""
    return {display_name(name): content for name in names if (content := _read(directory / name)) is not None}


def display_name(name: str | Path) -> str:
    """Return a file name as valid Unicode, for logs, metrics and statuses."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _stamp(entry: "os.DirEntry[str]") -> Stamp:
    """Return the stamp of the file behind a link, since Kubernetes mounts files as links."""
    try:
        found = entry.stat()
    except OSError:
        return (0, 0, 0)
    # If a file becomes readable, only its ctime changes.
    return found.st_ino, found.st_ctime_ns, found.st_size


def _read(path: Path) -> bytes | OSError | None:
    """Return the content or the error; None if the file has been deleted."""
    try:
        # Before opening, which may have effects on a device, and after, since the path may have been replaced.
        _check_regular(path.stat())
        with open(path, "rb", opener=_open) as file:
            _check_regular(os.fstat(file.fileno()))
            return file.read(FILE_LIMIT_BYTES + 1)
    except FileNotFoundError as error:
        return error if path.is_symlink() else None
    except OSError as error:
        return error


def _check_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")


def _open(path: str, flags: int) -> int:
    """Open without blocking, which a pipe without a writer would."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
