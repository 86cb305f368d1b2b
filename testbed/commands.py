"""Commands as a person starts them: what they say, and how they end."""

import asyncio
import signal
from typing import Final

import msgspec

WITHIN_S: Final = 120


class Outcome(msgspec.Struct, frozen=True):
    """What a person sees of one command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Standard output by lines."""
        return self.out.splitlines()


class Running:
    """A command that has not ended; ``said`` waits for a line of its standard output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._out = ""

    async def said(self, text: str) -> None:
        """Wait for a line that holds ``text``."""
        assert self._process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            while text not in (line := (await self._process.stdout.readline()).decode()):
                assert line, f"it ended without saying {text!r}: {await self.ended()}"
                self._out += line
        self._out += line

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    async def ended(self) -> Outcome:
        """Wait for its end."""
        async with asyncio.timeout(WITHIN_S):
            out, err = await self._process.communicate()
        assert self._process.returncode is not None
        return Outcome(self._process.returncode, self._out + out.decode(), err.decode())
