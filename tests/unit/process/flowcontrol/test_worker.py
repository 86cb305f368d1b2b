"""The bounded worker: off the event loop, limited in the bytes that wait, freed by every ending."""

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from governor.errors import GovernorError, Kind
from governor.process.flowcontrol.worker import Worker

WITHIN_S = 10


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker("test", threads=1, max_bytes=10)
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


async def run_held(worker: Worker, size: int) -> tuple[Held, "asyncio.Task[str]"]:
    held = Held()
    task = asyncio.create_task(worker.run(held, size))
    assert await asyncio.to_thread(held.started.wait, WITHIN_S)
    return held, task


async def test_a_function_runs_in_a_thread_and_its_error_is_raised(worker: Worker) -> None:
    assert await worker.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ValueError, match="invalid literal"):
        await worker.run(partial(int, "x"), 10)
    assert await worker.run(partial(int, "1"), 10) == 1


async def test_more_bytes_than_the_limit_are_rejected_until_earlier_ones_are_processed(worker: Worker) -> None:
    held, first = await run_held(worker, 6)
    queued = asyncio.create_task(worker.run(lambda: "queued", 4))
    await asyncio.sleep(0)
    with pytest.raises(GovernorError, match="retry in a moment") as caught:
        await worker.run(lambda: "rejected", 1)
    without_size = asyncio.create_task(worker.run(lambda: "small"))
    held.released.set()
    assert (await first, await queued, await without_size) == ("done", "queued", "small")
    assert (caught.value.kind, caught.value.code) == (Kind.UNAVAILABLE, "busy")
    assert await worker.run(lambda: "admitted", 10) == "admitted"


async def test_a_cancelled_caller_frees_its_bytes_when_the_function_cannot_run_any_more(worker: Worker) -> None:
    held, first = await run_held(worker, 6)
    queued = asyncio.create_task(worker.run(lambda: "never", 4))
    await asyncio.sleep(0)
    queued.cancel()
    first.cancel()
    await asyncio.gather(first, queued, return_exceptions=True)
    with pytest.raises(GovernorError):
        await worker.run(lambda: "too large while the first one runs", 5)
    last = asyncio.create_task(worker.run(lambda: "fits", 4))
    await asyncio.sleep(0)
    held.released.set()
    assert await last == "fits"
    assert await worker.run(lambda: "everything", 10) == "everything"
