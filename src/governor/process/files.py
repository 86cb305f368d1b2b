"""Atomic and durable file operations, and an exclusive lock: after a crash a file has its old or its new content.

All functions block; call them through ``asyncio.to_thread`` in async code.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_SUFFIX: Final = ".tmp"
_RANDOM_BYTES: Final = 4
_TEMPORARY: Final = re.compile(rf"\..+\.[0-9a-f]{{{2 * _RANDOM_BYTES}}}{re.escape(_SUFFIX)}")


class Staged:
    """New content of a file, durable under a temporary name until it is committed or discarded."""

    def __init__(self, path: Path, temporary: Path) -> None:
        self._path = path
        self.temporary = temporary

    def sync(self) -> None:
        """Make content durable that another library wrote to the temporary file."""
        try:
            with self.temporary.open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise _file_error(error, "write", self._path) from error

    def commit(self) -> None:
        """Replace the file durably; needs no disk space."""
        commit_all([self])

    def replace(self) -> Path:
        """Replace the file, and return the directory to sync."""
        try:
            self.temporary.replace(self._path)
        except OSError as error:
            raise _file_error(error, "write", self._path) from error
        return self._path.parent

    def discard(self) -> None:
        """Remove the temporary file if it was not committed."""
        self.temporary.unlink(missing_ok=True)


def stage(path: Path, data: bytes, mode: int = 0o600) -> Staged:
    """Write ``data`` beside ``path`` with exactly ``mode``, independent of the umask.

    The temporary name is hidden and has a suffix that programs watching the directory ignore.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(_RANDOM_BYTES)}{_SUFFIX}")
    staged = Staged(path, temporary)
    try:
        _write(temporary, data, mode)
    except OSError as error:
        staged.discard()
        raise _file_error(error, "write", path) from error
    return staged


def commit_all(staged: Iterable[Staged]) -> None:
    """Replace several files in this order, each atomically, then make all of it durable; needs no disk space."""
    directories = [each.replace() for each in staged]
    for directory in dict.fromkeys(directories):
        try:
            _sync_directory(directory)
        except OSError as error:
            raise _file_error(error, "write", directory) from error


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` atomically and durably by ``data`` with exactly ``mode``, independent of the umask."""
    staged = stage(path, data, mode)
    try:
        staged.commit()
    finally:
        staged.discard()


def remove_temporary_files(directory: Path) -> None:
    """Remove temporary files that a killed program left in ``directory``, which no other program may write to."""
    try:
        for entry in directory.iterdir():
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file():
                entry.unlink(missing_ok=True)
    except OSError as error:
        raise _file_error(error, "clean up", directory) from error


def remove_durable(path: Path) -> bool:
    """Remove ``path`` durably. Return False if it did not exist."""
    try:
        path.unlink()
        _sync_directory(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _file_error(error, "remove", path) from error
    return True


@contextlib.contextmanager
def exclusive_lock(path: Path, in_use: GovernorError) -> Iterator[None]:
    """Hold the kernel's lock on ``path``, creating the file if needed; raise ``in_use`` if another process holds it.

    The lock ends with the process, even after SIGKILL; the file stays.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"cannot open {path}: {error.strerror or error}; check the directory and its permissions"
        raise GovernorError(Kind.PRECONDITION, "lock-file", message) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise in_use from error
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_error(error: OSError, action: str, path: Path) -> GovernorError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return GovernorError(Kind.EXHAUSTED, "disk-full", f"cannot {action} {path}: {reason}; free space there")
    return GovernorError(
        Kind.PRECONDITION, "file-access", f"cannot {action} {path}: {reason}; check the directory and its permissions"
    )
