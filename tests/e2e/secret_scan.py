"""A scan for the scenario's secrets, which are unique in each run, in everything that it shows or leaves on disk.

Allowed are a delivered password in 0600 files of the runtimes that use it, and each secret in its own 0600 file.
"""

import base64
import re
from pathlib import Path

import msgspec


class Secrets(msgspec.Struct, frozen=True):
    """The secrets of a scenario, each with the files and directories that may contain it."""

    allowed: dict[str, tuple[Path, ...]]

    @classmethod
    def of(cls, directory: Path) -> "Secrets":
        """Read the admin token and both Redis passwords; only runtime 2 uses the second one."""
        token = directory / "server" / "data" / "admin.token"
        settings = [directory / f"redis-{number}" / "redis.conf" for number in (1, 2)]
        states = [directory / f"runtime-{number}" / "state" for number in (1, 2)]
        first, second = map(_password, settings)
        admin = token.read_text().strip()
        return cls({admin: (token,), first: (settings[0], *states), second: (settings[1], states[1])})

    def leaks(self, directory: Path) -> set[Path]:
        """Return the files below a directory that contain a secret and may not, or that other users can read."""
        found = [(path, places) for secret, places in self.allowed.items() for path in holders(directory, secret)]
        return {path for path, places in found if not (is_private(path) and any(map(path.is_relative_to, places)))}

    def are_in(self, directory: Path) -> bool:
        """Return whether any of them is found below a directory."""
        return any(holders(directory, secret) for secret in self.allowed)

    def shown(self) -> list[str]:
        """Return the command lines, readable by every user, that contain a secret."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command_line = file.read_bytes()
            except OSError:
                continue
            if any(secret.encode() in command_line for secret in self.allowed):
                found.append(command_line.decode(errors="replace"))
        return found


def encodings(secret: str) -> list[bytes]:
    """Return a secret in plain and encoded forms."""
    encoded = base64.b64encode(secret.encode()).rstrip(b"=")
    return [secret.encode(), encoded[:-1], secret.encode().hex().encode(), secret[::-1].encode()]


def holders(directory: Path, secret: str) -> set[Path]:
    """Return every file below a directory that contains the secret in any form."""
    files = {path: _content(path) for path in directory.rglob("*") if path.is_file() and not path.is_symlink()}
    texts = encodings(secret)
    return {path for path, content in files.items() if any(text in content for text in texts)}


def is_private(path: Path) -> bool:
    return path.stat().st_mode & 0o077 == 0


def _content(file: Path) -> bytes:
    """Return the content of a file, or nothing if a running program has just removed it."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def _password(settings: Path) -> str:
    found = re.search(r"^requirepass (\S+)$", settings.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]
