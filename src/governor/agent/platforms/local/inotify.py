"""Watches directories with Linux's inotify: reports that something in them has changed, not what."""

import asyncio
import contextlib
import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_MODIFY: Final = 0x2
_CLOSE_WRITE: Final = 0x8
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_CHANGES: Final = _MODIFY | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_READ_BYTES: Final = 64 * 1024


class DirectoryWatch:
    """An inotify instance on some directories. Raise OSError if the kernel gives none."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _last_error()
        try:
            self.arm()
        except OSError:
            self.close()
            raise

    def arm(self) -> None:
        """Watch every directory that exists; needed again for one that was re-created. Blocking. Raise OSError."""
        for each in self._directories:
            # A missing directory is not an error: its removal was a change.
            added = self._libc.inotify_add_watch(self._descriptor, os.fsencode(each), _CHANGES)
            if added < 0 and ctypes.get_errno() != errno.ENOENT:
                raise _last_error()

    async def wait(self) -> None:
        """Wait for a change since the last call."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, changed.set)
        try:
            await changed.wait()
        finally:
            loop.remove_reader(self._descriptor)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._descriptor, _READ_BYTES):
                pass

    def close(self) -> None:
        """Stop watching."""
        os.close(self._descriptor)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
