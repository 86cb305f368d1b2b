"""Debian's Redis, started with a password, and a minimal client for tests."""

import asyncio
import re
import secrets
import shutil
import subprocess
from pathlib import Path

from testbed.server import Server
from toolchain.errors import TestbedError
from toolchain.recipe import Recipe
from toolchain.steps import Steps

# Debian's redis-server package is a link to this program and a system service. The link alone starts no service.
_PROGRAM = Path("/usr/bin/redis-check-rdb")
_OLDEST = 6
_ANSWER_WITHIN_S = 60.0

Reply = str | int | list["Reply"] | None


def is_supported(printed: str) -> bool:
    """Return whether this output of ``redis-server --version`` names a supported version."""
    found = re.search(r"\bv=(\d+)\.", printed)
    return found is not None and int(found[1]) >= _OLDEST


def _on_path() -> Path | None:
    server = shutil.which("redis-server")
    if server is None:
        return None
    printed = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout
    return Path(server) if is_supported(printed) else None


def _link(result: Path, steps: Steps) -> None:
    steps.run("link Debian's server", ["ln", "-s", _PROGRAM, result / "redis-server"])
    steps.run("check its version", [result / "redis-server", "--version"])


REDIS = Recipe(
    "redis", "debian", "redis-server", _link, inputs=(str(_PROGRAM),), packages=("redis-tools",), find=_on_path
)


class RedisError(TestbedError):
    """An error reply of the server."""


class Redis(Server):
    """A Redis server with a password and without persistence."""

    def __init__(self, binary: Path, directory: Path) -> None:
        super().__init__("redis", directory, ["redis"])
        self.password = secrets.token_urlsafe(16)
        self._binary = binary

    @property
    def port(self) -> int:
        """The loopback port."""
        return self.ports["redis"]

    @property
    def address(self) -> str:
        """Host and port, in the format of Dapr's ``redisHost``."""
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """Write the settings to a file, to keep the password out of process lists, and return the command line."""
        settings = {
            "bind": "127.0.0.1",
            "port": self.port,
            "requirepass": self.password,
            "dir": self.directory,
            "save": '""',
            "appendonly": "no",
        }
        file = self.directory / f"{self.name}.conf"
        file.touch(mode=0o600)
        file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8")
        return [str(self._binary), str(file)]

    async def is_ready(self) -> bool:
        """Return whether the server accepts its password, which another server on this port would not."""
        try:
            return await self.execute("PING") == "PONG"
        except (OSError, asyncio.IncompleteReadError, RedisError):
            return False

    async def execute(self, *command: str) -> Reply:
        """Send a command and return its reply."""
        return await execute(self.port, self.password, *command)


async def execute(port: int, password: str, *command: str, host: str = "127.0.0.1") -> Reply:
    """Send a command on a new connection and return its reply."""
    async with asyncio.timeout(_ANSWER_WITHIN_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(_encoded("AUTH", password) + _encoded(*command))
            await _reply(reader)
            return await _reply(reader)
        finally:
            writer.close()
            await writer.wait_closed()


def _encoded(*words: str) -> bytes:
    parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in map(str.encode, words)]
    return b"*%d\r\n" % len(parts) + b"".join(parts)


async def _reply(reader: asyncio.StreamReader) -> Reply:
    line = (await reader.readuntil(b"\r\n"))[:-2].decode()
    kind, rest = line[:1], line[1:]
    match kind:
        case "+":
            return rest
        case "-":
            raise RedisError(f"Redis rejected the command: {rest}")
        case ":":
            return int(rest)
        case "$":
            return None if rest == "-1" else (await reader.readexactly(int(rest) + 2))[:-2].decode()
        case "*":
            return [await _reply(reader) for _ in range(int(rest))]
    raise RedisError(f"Redis sent an invalid reply: {line!r}")
