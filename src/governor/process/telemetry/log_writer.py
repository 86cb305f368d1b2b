"""Writing of log lines in a thread, so that a stderr that is not read does not block the program.

Lines wait in a bounded buffer. If it is full, lines are dropped and counted: ordinary lines first, then errors, audit
lines last. What a line contains is decided in ``logging``.
"""

import contextlib
import enum
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TextIO, TypeAlias

_ATOMIC_BYTES: Final = select.PIPE_BUF
"""The kernel does not mix shorter writes to a pipe with those of other processes."""
_BACKLOG_BYTES: Final = 64 * 1024
"""Size of a write if more is waiting: after each write the thread waits for the interpreter lock, up to 5 ms."""
_RETRY_S: Final = 1.0
"""Time until a failed write is repeated."""


class Priority(enum.IntEnum):
    """Priority of a line. The value is the buffer size in bytes above which such a line is dropped."""

    OTHER = 512 * 1024
    ERROR = 576 * 1024
    AUDIT = 1024 * 1024


_NOTICE_BELOW_BYTES: Final = Priority.OTHER // 2
"""Dropped lines are announced when no more than this is waiting, since near the limit long lines are still dropped."""

Dropped: TypeAlias = Mapping[Priority, int]
"""Numbers of dropped lines."""


class Writer(Protocol):
    """Where log lines are written."""

    dropped: dict[Priority, int]

    def put(self, line: str, priority: Priority) -> None:
        """Write a line, now or later."""

    def flush(self, within_s: float) -> None:
        """Wait until all lines are written, at most ``within_s``."""

    def close(self) -> None:
        """Stop the writer; the process is about to exit."""


class DirectWriter:
    """Writes each line at once, to a stream without a file descriptor."""

    def __init__(self, stream: TextIO) -> None:
        self.dropped = dict.fromkeys(Priority, 0)
        self._stream = stream

    def put(self, line: str, priority: Priority) -> None:
        """Write a line."""
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.dropped[priority] += 1  # A failure to log must not fail the caller.

    def flush(self, within_s: float) -> None:
        """Do nothing: no line waits."""

    def close(self) -> None:
        """Do nothing: no line waits."""


class ThreadWriter:
    """Writes lines to a file descriptor in a thread; ``put`` never waits for the file.

    A write that fails is repeated, so lines are lost only if the buffer is full, or if the process ends first.
    ``notice`` returns the line that is written in place of dropped ones.
    """

    def __init__(self, stream: TextIO, notice: Callable[[Dropped], str]) -> None:
        self.dropped = dict.fromkeys(Priority, 0)
        self._unannounced: dict[Priority, int] = {}
        self._stream = stream  # Referenced, so that its descriptor stays open.
        self._descriptor = stream.fileno()
        self._writable = select.poll()
        self._writable.register(self._descriptor, select.POLLOUT)
        self._notice = notice
        self._pending = bytearray()
        """Lines not yet written; no list of lines, whose memory would depend on their number."""
        # Reentrant: a finalizer may log at any point, even while its thread holds the lock.
        self._lock = threading.RLock()
        self._removed = threading.Condition(self._lock)
        self._wake = SimpleQueue[None]()  # Costs the logging thread less than a Condition.
        self._idle = False
        self._failures = 0
        self._closed = False
        threading.Thread(target=self._run, name="log-writer", daemon=True).start()

    def put(self, line: str, priority: Priority) -> None:
        """Add a line, or drop it if too much is waiting."""
        self.put_bytes(self._encode(line), priority)

    def put_bytes(self, data: bytes, priority: Priority) -> None:
        """Add encoded text, or drop it if too much is waiting; longer text is accepted if nothing is waiting."""
        with self._lock:
            if self._pending and len(self._pending) + len(data) > priority:
                self.dropped[priority] += 1
                self._unannounced[priority] = self._unannounced.get(priority, 0) + 1
                return
            if len(self._pending) < _NOTICE_BELOW_BYTES:
                self._add_notice()
            self._pending += data
            if self._closed:
                self._write_what_fits()
            elif self._idle:
                self._idle = False
                self._wake.put(None)

    def flush(self, within_s: float) -> None:
        """Wait until everything is written, at most ``within_s``; return as soon as a write fails."""
        with self._lock:
            failures = self._failures
            self._wake.put(None)
            self._removed.wait_for(lambda: self._is_written or self._failures > failures, within_s)

    def close(self) -> None:
        """Stop the thread if it has written everything; later lines are written only if that does not block.

        Threads do not survive into the last phase of an interpreter, in which finalizers may still log.
        """
        with self._lock:
            self._closed = self._is_written
            self._wake.put(None)

    @property
    def _is_written(self) -> bool:
        return not self._pending and not self._unannounced

    def _encode(self, line: str) -> bytes:
        return f"{line}\n".encode(self._stream.encoding, "backslashreplace")

    def _add_notice(self) -> None:
        if self._unannounced:
            dropped, self._unannounced = self._unannounced, {}
            self._pending += self._encode(self._notice(dropped))

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                written = self._write(batch)
            except OSError:
                self._wait_after_failure()
            else:
                with self._lock:
                    del self._pending[:written]
                    self._removed.notify_all()

    def _next_batch(self) -> bytes:
        """Wait for lines and return some of them; return nothing once closed."""
        while True:
            with self._lock:
                if self._closed:
                    return b""
                if not self._pending:
                    self._add_notice()
                if self._pending:
                    return self._first_lines()
                self._idle = True
            self._wake.get()

    def _first_lines(self) -> bytes:
        """Return whole lines for one write: a few, many if there is a backlog, or a single long one."""
        limit = _ATOMIC_BYTES if len(self._pending) <= _BACKLOG_BYTES else _BACKLOG_BYTES
        end = self._pending.rfind(b"\n", 0, limit) + 1 or self._pending.find(b"\n") + 1 or len(self._pending)
        return bytes(self._pending[:end])

    def _write(self, batch: bytes) -> int:
        try:
            return os.write(self._descriptor, batch)
        except BlockingIOError:
            # Another process that shares the terminal or pipe has made it non-blocking.
            self._writable.poll()
            return 0

    def _wait_after_failure(self) -> None:
        """Wait for the time of a retry, or for ``flush``: a disk may have space again, a pipe a new reader."""
        with self._lock:
            self._failures += 1
            self._removed.notify_all()
        with contextlib.suppress(Empty):
            self._wake.get(timeout=_RETRY_S)

    def _write_what_fits(self) -> None:
        try:
            while self._pending and self._writable.poll(0):
                del self._pending[: os.write(self._descriptor, self._pending[:_ATOMIC_BYTES])]
        except OSError:
            self._pending.clear()


class _StderrFile(io.RawIOBase):
    """The file behind the replaced ``sys.stderr``."""

    def __init__(self, writer: ThreadWriter, descriptor: int) -> None:
        self._writer = writer
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        self._writer.put_bytes(bytes(data), Priority.ERROR)
        return len(data)


def replace_stderr(writer: ThreadWriter) -> None:
    """Replace ``sys.stderr``, so that tracebacks and other printed text wait in the same buffer as the logs.

    Otherwise they would be written before earlier log lines, and block the program if nothing reads them.
    """
    file = io.BufferedWriter(_StderrFile(writer, sys.stderr.fileno()))
    sys.stderr = io.TextIOWrapper(file, sys.stderr.encoding, "backslashreplace", line_buffering=True)
