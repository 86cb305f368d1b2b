"""The docker command line, Debian's and unmodified."""

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from testbed.commands import WITHIN_S, Outcome
from testbed.recipes import provide
from toolchain.errors import TestbedError

_LARGEST_LINE = 16 * 2**20


class DockerCli:
    """docker on one socket."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command and return its output; raise if it fails."""
        outcome = await self.outcome(*arguments, stdin=stdin)
        if outcome.code != 0:
            raise TestbedError(f"docker {' '.join(arguments)} failed: {outcome.err}{outcome.out}")
        return outcome.out.strip()

    async def outcome(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        """Run a command to its end."""
        async with self.running(*arguments) as process, asyncio.timeout(WITHIN_S):
            out, err = await process.communicate(stdin)
        return Outcome(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))

    @asynccontextmanager
    async def running(self, *arguments: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
        """Run a command with pipes; it is killed at the end if it has not exited."""
        argv = [str(provide(["docker"])["docker"]), f"--host=unix://{self.socket}", *arguments]
        variables = {"HOME": "/nonexistent", **(environment or {})}
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=variables, limit=_LARGEST_LINE
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # it has exited
                process.kill()
            await process.communicate()
