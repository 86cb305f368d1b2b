"""The output of a process: a log file or a pipe, and its last lines.

Used by ``child`` and ``detached`` only. Lines are decoded as UTF-8, invalid bytes are replaced, and long lines are cut.
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
_ELLIPSIS: Final = "…"


class Output(Protocol):
    """The destination of the output of a process."""

    def open(self) -> contextlib.AbstractContextManager[int]:
        """Open the descriptor that the process inherits; it is closed here on exit."""

    def discard(self) -> None:
        """Release all resources if the process did not start."""

    async def read(self) -> None:
        """Read until the process and its descendants have closed their end."""

    def tail(self) -> tuple[str, ...]:
        """Return the last lines so far."""


class InheritedOutput:
    """The output of this process, of which nothing is kept."""

    begin: Final = 0

    def tail(self) -> tuple[str, ...]:
        """Return no lines."""
        return ()


class FileOutput:
    """A log file with mode 0600 to which the process appends."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self._path = path
        self.begin = begin

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """Open the descriptor that the process inherits; it is closed here on exit."""
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

    def discard(self) -> None:
        """Do nothing: no resource is held."""

    async def read(self) -> None:
        """Return at once: the process writes to the file itself."""

    def tail(self) -> tuple[str, ...]:
        """Return the last lines that this process has written."""
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
    """A pipe that is read line by line; not asyncio's, which reports an exit only after the pipe is closed."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._reading_end = -1

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """Open the descriptor that the process inherits; it is closed here on exit."""
        self._reading_end, descriptor = os.pipe()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def discard(self) -> None:
        """Close the reading end if the process did not start."""
        if self._reading_end >= 0:
            os.close(self._reading_end)

    async def read(self) -> None:
        """Read until the process and its descendants have closed their end."""
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
            self._add(lines.rest())

    def _read_some(self, lines: "Lines", ended: "asyncio.Future[None]") -> None:
        if ended.done():
            return
        try:
            chunk = os.read(self._reading_end, _READ_BYTES)
            self._add(lines.feed(chunk))
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - raised by the task that waits for the process
            ended.set_exception(error)
            return
        if not chunk:
            ended.set_result(None)

    def tail(self) -> tuple[str, ...]:
        """Return the last lines so far."""
        return tuple(self._tail)

    def _add(self, lines: list[str]) -> None:
        for line in lines:
            self._tail.append(line)
            if self._on_line:
                self._on_line(line)


class Lines:
    """Splits bytes into lines of at most LINE_BYTES, buffering no more than one line."""

    def __init__(self) -> None:
        self._part = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that ``data`` completes."""
        *ended, last = data.split(b"\n")
        found: list[str] = []
        for piece in ended:
            found += self._extend(piece)
            found += self.rest()
            self._skipping = False
        return found + self._extend(last)

    def rest(self) -> list[str]:
        """Return the unterminated line, if there is one."""
        if self._skipping:
            return []
        part, self._part = self._part, b""
        return [_text(part)] if part else []

    def _extend(self, piece: bytes) -> list[str]:
        """Extend the current line; return it, cut, once it is too long."""
        if self._skipping:
            return []
        self._part += piece
        if len(self._part) <= LINE_BYTES:
            return []
        part, self._part = self._part, b""
        self._skipping = True
        return [_text(part[:LINE_BYTES]) + _ELLIPSIS]


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")
