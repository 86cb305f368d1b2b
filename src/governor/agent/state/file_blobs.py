"""State in files of one directory, mode 0600, replaced atomically."""

import asyncio
import os
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind
from governor.process import files

_KEY_SUFFIX: Final = ".key"


class FileBlobs:
    """The values in one directory, which must exist; a name is the name of a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def location(self, name: str) -> str:
        """Return the path of a value."""
        return str(self._directory / name)

    async def read(self, name: str) -> bytes | None:
        """Return a value, or None if there is none; PRECONDITION if other users can read a private key."""
        return await asyncio.to_thread(_read, self._directory / name)

    async def write(self, name: str, data: bytes) -> None:
        """Store a value durably."""
        await asyncio.to_thread(files.write_atomic, self._directory / name, data)

    async def remove(self, name: str) -> None:
        """Remove a value durably if there is one."""
        await asyncio.to_thread(files.remove_durable, self._directory / name)


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data, mode = file.read(), os.fstat(file.fileno()).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}; check its permissions"
        raise GovernorError(Kind.PRECONDITION, "state-unreadable", message) from error
    if path.suffix == _KEY_SUFFIX and mode & 0o077:
        message = f"{path} must be an Ed25519 key that only its owner can read (chmod 600)"
        raise GovernorError(Kind.PRECONDITION, "key-unfit", message)
    return data
