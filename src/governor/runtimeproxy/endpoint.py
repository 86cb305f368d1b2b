"""A listening Unix socket: inherited, or claimed if no other process serves on its path and removed on shutdown."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.inheritance import Inheritance

_MODE: Final = 0o660
_BACKLOG: Final = 128
_PROBE_TIMEOUT_S: Final = 5.0


class Endpoint:
    """A listening socket and its path."""

    def __init__(self, path: Path, listener: socket.socket, *, is_owned: bool = True) -> None:
        self.path = path
        self.listener = listener
        self.is_owned = is_owned
        """Whether the file is removed on shutdown; others keep the sockets that they pass, until ``own``."""
        self._identity: tuple[int, int] | None = _identity(path)

    def unreachable(self) -> str:
        """Return why clients cannot reach the socket by its path, or "" if they can or we removed it."""
        try:
            is_ours = self._identity in (None, _identity(self.path))
        except OSError as error:
            return f"{self.path}: {error.strerror or error}" if self._identity is not None else ""
        return "" if is_ours else f"{self.path} was replaced by another program"

    def remove(self) -> None:
        """Remove the file unless another process replaced it. Call it before closing the listener.

        While the listener is open, no other file can have the same inode number.
        """
        identity, self._identity = self._identity, None
        with contextlib.suppress(FileNotFoundError):
            if self.is_owned and identity is not None and _identity(self.path) == identity:
                self.path.unlink()

    def own(self) -> None:
        """Remove the file on shutdown: the proxy that passed the socket has been replaced."""
        self.is_owned = True

    def disown(self) -> None:
        """Leave the file to the proxy that this one was replaced by."""
        self.is_owned, self._identity = False, None


def claim(path: Path, inheritance: Inheritance, mode: int = _MODE) -> Endpoint:
    """Return the inherited socket with this path, or listen on ``path``, replacing a stale socket.

    An inherited one is not owned: as long as this process has not taken over, another one may serve there.
    Raise PRECONDITION ``socket-in-use`` if another process serves on it.
    """
    inherited = inheritance.at_path(path)
    if inherited is not None:
        return Endpoint(path, inherited, is_owned=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            _remove_stale(path)
            return _bind(path, mode)
    except OSError as error:
        message = f"cannot serve on {path}: {error.strerror or error}; check the path and its permissions"
        raise GovernorError(Kind.PRECONDITION, "socket", message) from error


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold an exclusive lock: of two processes that start at once, one must find the other's socket."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        message = f"{path} is not a socket; move it away or choose another path"
        raise GovernorError(Kind.PRECONDITION, "socket-in-use", message)
    if _is_served(path):
        message = f"another program serves on {path}; stop it first or choose another path"
        raise GovernorError(Kind.PRECONDITION, "socket-in-use", message)
    path.unlink()


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        error = probe.connect_ex(str(path))
    # Any other error may come from a busy program.
    return error not in (errno.ECONNREFUSED, errno.ENOENT)


def _bind(path: Path, mode: int) -> Endpoint:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return Endpoint(path, listener)


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
