"""Files that are whole after a crash: either the old content or the new one, never a part.

Blocking on purpose; call it through ``asyncio.to_thread`` where a loop runs. What the files mean is the caller's.
"""

import errno
import os
import secrets
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_BY_OTHERS: Final = (".yaml", ".yml")


def write_atomic(path: Path, data: bytes, mode: int = 0o600, suffix: str = ".tmp") -> None:
    """Replace ``path`` durably by ``data`` with exactly ``mode``, whatever the umask.

    The temporary file stands in the same directory under a hidden name that ends in ``suffix``, which must not be one
    that programs watching the directory would read.
    """
    if not suffix.startswith(".") or suffix.endswith(_READ_BY_OTHERS):
        raise ValueError(f"a temporary file must not be taken for a finished one: suffix {suffix!r}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{suffix}")
    try:
        _write(temporary, data, mode)
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise _translated(error, "write", path) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_durable(path: Path) -> bool:
    """Remove ``path`` so that it stays removed after a crash; False when it was not there."""
    try:
        path.unlink()
        _sync_directory(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _translated(error, "remove", path) from error
    return True


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


def _translated(error: OSError, act: str, path: Path) -> GovernorError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return GovernorError(Kind.EXHAUSTED, "disk-full", f"cannot {act} {path}: {reason}; free space there")
    return GovernorError(
        Kind.PRECONDITION, "file-access", f"cannot {act} {path}: {reason}; check the directory and its permissions"
    )
