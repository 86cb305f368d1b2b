"""A directory for one program at a time. The lock is the kernel's: it ends with the program, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from governor.errors import GovernorError, Kind


@contextmanager
def exclusive(file: Path, in_use: GovernorError) -> Iterator[None]:
    """Hold the lock on ``file``, which stays there; raises ``in_use`` when another program holds it. Blocking."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"cannot open {file}: {error.strerror or error}; check the directory and its permissions"
        raise GovernorError(Kind.PRECONDITION, "lock-file", message) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise in_use from error
        yield
    finally:
        os.close(descriptor)
