"""Watches the directory of the plugins' files. What is in a file is ``registrations``' business."""

import asyncio
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.runtimeproxy.plugins.plugin import Plugins
from governor.runtimeproxy.plugins.registration import FILE_LIMIT_BYTES, SUFFIX
from governor.runtimeproxy.plugins.registry import reload

_EVERY_S: Final = 0.5

Stamp: TypeAlias = tuple[int, int, int]
Contents: TypeAlias = dict[str, bytes | OSError]

_log = logging.get_logger(__name__)


class HookDirectory:
    """Keeps the plugins in force what the files say."""

    def __init__(self, path: Path, plugins: Plugins, clock: Clock) -> None:
        self._path = path
        self._plugins = plugins
        self._clock = clock
        self._stamps: dict[str, Stamp] = {}
        self._complaint = ""

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await self._clock.sleep(_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Read the files if any of them changed."""
        try:
            stamps = await asyncio.to_thread(stamps_in, self._path)
        except OSError as error:
            self._complain(f"{self._path}: {error.strerror or error}")
            return
        self._complaint = ""
        if stamps == self._stamps:
            return
        contents = await asyncio.to_thread(contents_of, self._path, stamps)
        self._stamps = stamps
        self._plugins.replace(reload(self._plugins.registrations, contents))

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            _log.warning("the plugins' directory cannot be read; they stay as they were", error=complaint)
        self._complaint = complaint


def stamps_in(directory: Path) -> dict[str, Stamp]:
    """The plugins' files, with what tells a changed one from an unchanged. A directory that is not there has none."""
    try:
        with os.scandir(directory) as entries:
            return {each.name: _stamp(each) for each in entries if each.name.endswith(SUFFIX)}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def contents_of(directory: Path, names: Iterable[str]) -> Contents:
    """What is in these files, or why they cannot be read; those that are gone by now are not there."""
    return {shown(name): content for name in names if (content := _read(directory / name)) is not None}


def shown(name: str | Path) -> str:
    """A name of a file as a text that can be logged, counted and told to kubelet."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _stamp(entry: "os.DirEntry[str]") -> Stamp:
    """Of what a link points to, since Kubernetes mounts files as links."""
    try:
        found = entry.stat()
    except OSError:
        return (0, 0, 0)
    # A file that may be read from now on has only another ctime.
    return found.st_ino, found.st_ctime_ns, found.st_size


def _read(path: Path) -> bytes | OSError | None:
    """What is in a file or why it cannot be read; None if it is gone by now."""
    try:
        # Before, since to open a device may do something, and after, since it may have become another thing.
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
        raise OSError(errno.EINVAL, "is no regular file")


def _open(path: str, flags: int) -> int:
    """Whatever it is, who opens it does not wait: a pipe would have to be written first."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
