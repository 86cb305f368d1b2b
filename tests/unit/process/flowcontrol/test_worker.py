"""The worker runs functions off the event loop and keeps nothing of a call that has ended."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from functools import partial

import pytest

from governor.process.flowcontrol.worker import Worker

WITHIN_S = 10


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker("test", threads=1)
    yield worker
    worker.close()


class Held:
    """A function that runs until it is released."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.released = threading.Event()

    def __call__(self) -> str:
        self.started.set()
        assert self.released.wait(WITHIN_S)
        return "done"


async def run_held(worker: Worker) -> tuple[Held, "asyncio.Future[str]"]:
    held = Held()
    task = worker.run(held)
    assert await asyncio.to_thread(held.started.wait, WITHIN_S)
    return held, task


async def test_a_function_runs_in_a_thread_and_its_error_is_raised(worker: Worker) -> None:
    assert await worker.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ValueError, match="invalid literal"):
        await worker.run(partial(int, "x"))


async def test_a_cancelled_function_is_freed_before_its_turn_and_does_not_run(worker: Worker) -> None:
    held, first = await run_held(worker)
    waiting = Held()
    freed = weakref.ref(waiting)
    queued = worker.run(waiting)
    queued.cancel()
    # Cancelling the queued entry is a callback on the event loop.
    await asyncio.sleep(0)
    del waiting, queued
    gc.collect()
    assert freed() is None
    held.released.set()
    assert await first == "done"
    assert await worker.run(lambda: "next") == "next"
