"""A worker for CPU-bound functions: a few threads, and a queue bounded by the bytes that wait to be processed.

Bytes bound the time and the memory of the queue alike, and admit a burst of small inputs. A count would not.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from governor.errors import GovernorError, Kind

T = TypeVar("T")


class Worker:
    """Runs functions in threads, so that none of them blocks the event loop."""

    def __init__(self, name: str, *, threads: int, max_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._bytes = 0

    async def run(self, function: Callable[[], T], size: int = 0) -> T:
        """Run a function that processes ``size`` bytes; raise if that would exceed the limit.

        A size of 0 is not limited: the checks of a change, whose request was admitted when it was decoded.

        A cancelled caller frees its bytes at once if the function has not started, otherwise when it returns.
        """
        self._acquire(size)
        future = self._pool.submit(function)
        future.add_done_callback(lambda _: self._release(size))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancel the queued functions and wait for the running ones."""
        self._pool.shutdown(cancel_futures=True)

    def _acquire(self, size: int) -> None:
        with self._lock:
            if self._bytes + size > self._max_bytes:
                message = (
                    f"{self._bytes} bytes of other requests are being processed, and {size} more exceed the limit "
                    f"of {self._max_bytes}; retry in a moment"
                )
                raise GovernorError(Kind.UNAVAILABLE, "busy", message)
            self._bytes += size

    def _release(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
