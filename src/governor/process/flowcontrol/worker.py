"""A worker for CPU-bound functions: a few threads and a queue, which its callers bound."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """Runs functions in threads, so that none of them blocks the event loop."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a function and return its result; it does not run if cancelled before its turn.

        The queue keeps a cancelled entry until its turn, but not what the function refers to.
        """
        queued = [function]

        def run_queued() -> T:
            return queued[0]()

        future = self._pool.submit(run_queued)
        future.add_done_callback(lambda _: queued.clear())
        return asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancel the queued functions and wait for the running ones."""
        self._pool.shutdown(cancel_futures=True)
