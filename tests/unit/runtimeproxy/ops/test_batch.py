"""Batches of work that follows calls."""

import asyncio

from governor.runtimeproxy.ops.batch import Batch


async def test_items_are_processed_together_without_a_flush() -> None:
    processed: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    batch = Batch(processed.set_result)
    for item in range(3):
        batch.add(item)
    assert not processed.done()
    assert await processed == [0, 1, 2]


async def test_a_full_batch_is_processed_at_once() -> None:
    processed: list[list[int]] = []
    batch = Batch(processed.append)
    for item in range(65):
        batch.add(item)
    assert processed == [list(range(64))]
    batch.flush()
    assert processed[1:] == [[64]]


async def test_an_empty_batch_is_not_processed() -> None:
    processed: list[list[int]] = []
    Batch(processed.append).flush()
    assert processed == []
