"""Commands run as a user runs them: their output and exit code."""

import asyncio
import signal
from typing import Final

import msgspec

WITHIN_S: Final = 120


class Outcome(msgspec.Struct, frozen=True):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of standard output."""
        return self.out.splitlines()


class Running:
    """A running command."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._out = ""

    async def wait_for_line(self, text: str) -> None:
        """Wait for a line of standard output that contains ``text``."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            while text not in (line := (await self._process.stdout.readline()).decode()):
                assert line, f"the command exited without printing {text!r}: {await self.ended()}"
                self._out += line
        self._out += line

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    async def ended(self) -> Outcome:
        """Wait until the command exits, and return its outcome."""
        async with asyncio.timeout(WITHIN_S):
            out, err = await self._process.communicate()
        assert self._process.returncode is not None
        return Outcome(self._process.returncode, self._out + out.decode(), err.decode())
