"""A pipe as the stderr of a test bed server, which nothing reads until the test does."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Self


class UnreadPipe:
    """A named pipe of one page."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        # Both ends, so that opening the pipe does not wait for the program and the program's end does not close it.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._size = fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, 4096)
        self._text = b""

    def fill(self) -> None:
        """Fill the pipe, so that the next write to it blocks."""
        os.write(self._descriptor, b"\n" * self._size)

    def as_stderr(self, command: list[str]) -> list[str]:
        """Return a command line that starts ``command`` with the pipe as its stderr."""
        return ["sh", "-c", 'exec "$@" 2>"$0"', str(self._path), *command]

    def events(self) -> list[dict[str, Any]]:
        """Read what the pipe contains, and return all log lines read so far."""
        try:
            while part := os.read(self._descriptor, self._size):
                self._text += part
        except BlockingIOError:
            pass
        whole = self._text.rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
