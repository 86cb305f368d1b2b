"""The inventory: sent when it has changed, once in each session, and seldom to a server that takes none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from governor.agent.outbox import Outbox, send_inventory
from governor.client import Client, WatchSession
from governor.domain.inventories import Inventory
from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock


class Bed:
    """A source and a server; the server answers with an error if told to."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.outbox = Outbox(self.clock)
        self.found = Inventory(("orders",))
        self.answer: Kind | None = None
        self.received: list[Inventory] = []

    async def read(self) -> Inventory:
        return self.found

    async def put_inventory(self, runtime: str, inventory: Inventory) -> None:
        assert runtime == "r1"
        self.received.append(inventory)
        if self.answer is not None:
            raise GovernorError(self.answer, "test", "test error")


@asynccontextmanager
async def sending(bed: Bed) -> AsyncIterator[None]:
    task = asyncio.create_task(send_inventory(bed, "r1", bed.outbox, cast("Client", bed), bed.clock))
    await bed.clock.advance(0)
    yield
    task.cancel()


async def test_an_inventory_is_sent_when_it_has_changed_and_in_each_session() -> None:
    bed = Bed()
    async with sending(bed):
        assert bed.received == []
        bed.outbox.watch_opened(WatchSession(1, 2))
        await bed.clock.advance(180)
        assert bed.received == [bed.found]
        bed.found = Inventory(("orders", "payments"))
        await bed.clock.advance(60)
        bed.outbox.watch_opened(WatchSession(2, 2))
        await bed.clock.advance(60)
        assert bed.received == [Inventory(("orders",)), bed.found, bed.found]


@pytest.mark.parametrize(
    ("answer", "attempts"), [(Kind.UNAVAILABLE, 10), (Kind.NOT_FOUND, 1)], ids=["unreachable", "older-server"]
)
async def test_a_server_that_cannot_take_it_is_asked_again(answer: Kind, attempts: int) -> None:
    bed = Bed()
    bed.outbox.watch_opened(WatchSession(1, 2))
    bed.answer = answer
    async with sending(bed):
        for _ in range(9):
            await bed.clock.advance(60)
        assert len(bed.received) == attempts
