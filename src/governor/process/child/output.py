"""Where the output of a child process goes, and its last lines: a file or a pipe, each bounded in what is kept.

Only ``child`` uses it. Lines are UTF-8; what is not is replaced, what is too long is cut.
"""

import asyncio
import collections
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from governor.errors import GovernorError, Kind

TAIL_LINES: Final = 20
LINE_BYTES: Final = 8 * 1024
_READ_BYTES: Final = 64 * 1024
_CUT: Final = "…"


class Output(Protocol):
    """What a child writes to."""

    def opened(self) -> contextlib.AbstractContextManager[int]:
        """The descriptor for the child, ours only until the child has it."""

    def abandon(self) -> None:
        """Let go of everything when the child did not start."""

    async def read(self) -> None:
        """Read until the child and its descendants have closed their end."""

    def tail(self) -> tuple[str, ...]:
        """The last lines so far."""


class FileOutput:
    """Appended to a file that only we may read; the child writes there itself."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self._path = path
        self.begin = begin

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """The descriptor for the child, ours only until the child has it."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            message = f"cannot open the log file {self._path}: {error.strerror or error}"
            raise GovernorError(Kind.PRECONDITION, "child-log", message) from error
        try:
            self.begin = os.fstat(descriptor).st_size
            yield descriptor
        finally:
            os.close(descriptor)

    def abandon(self) -> None:
        """Nothing is held."""

    async def read(self) -> None:
        """Nothing is to be read: the child writes to the file itself."""

    def tail(self) -> tuple[str, ...]:
        """The last lines that this child wrote so far."""
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self.begin, end - TAIL_LINES * LINE_BYTES))
                lines = Lines()
                found = [*lines.feed(file.read()), *lines.rest()]
        except FileNotFoundError:
            return ()
        return tuple(found[-TAIL_LINES:])


class PipeOutput:
    """Read by us line by line. The pipe is our own, since asyncio waits for its pipes before it sees a child's end."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._reading_end = -1

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """The descriptor for the child, ours only until the child has it."""
        self._reading_end, descriptor = os.pipe()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def abandon(self) -> None:
        """Let go of our end when the child did not start."""
        if self._reading_end >= 0:
            os.close(self._reading_end)

    async def read(self) -> None:
        """Read until the child and its descendants have closed their end."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        lines = Lines()
        os.set_blocking(self._reading_end, False)
        loop.add_reader(self._reading_end, self._read_some, lines, ended)
        try:
            await ended
        finally:
            loop.remove_reader(self._reading_end)
            os.close(self._reading_end)
            self._take(lines.rest())

    def _read_some(self, lines: "Lines", ended: "asyncio.Future[None]") -> None:
        if ended.done():
            return
        try:
            chunk = os.read(self._reading_end, _READ_BYTES)
            self._take(lines.feed(chunk))
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - the callback's failure belongs to whoever waits for the child
            ended.set_exception(error)
            return
        if not chunk:
            ended.set_result(None)

    def tail(self) -> tuple[str, ...]:
        """The last lines so far."""
        return tuple(self._tail)

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            self._tail.append(line)
            if self._on_line:
                self._on_line(line)


class Lines:
    """Bytes to lines, cutting those longer than LINE_BYTES, with memory for no more than one."""

    def __init__(self) -> None:
        self._part = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes."""
        *ended, last = data.split(b"\n")
        found: list[str] = []
        for piece in ended:
            found += self._extend(piece)
            found += self.rest()
            self._skipping = False
        return found + self._extend(last)

    def rest(self) -> list[str]:
        """The line without an end, if there is one."""
        if self._skipping:
            return []
        part, self._part = self._part, b""
        return [_text(part)] if part else []

    def _extend(self, piece: bytes) -> list[str]:
        """Add to the present line; the line itself once it is too long."""
        if self._skipping:
            return []
        self._part += piece
        if len(self._part) <= LINE_BYTES:
            return []
        part, self._part = self._part, b""
        self._skipping = True
        return [_text(part[:LINE_BYTES]) + _CUT]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")
