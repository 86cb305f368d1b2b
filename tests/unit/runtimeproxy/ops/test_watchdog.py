"""The watchdog of a proxy that is replaced: its checks would reach the successor."""

import asyncio

from governor.process.clock import VirtualClock
from governor.runtimeproxy.ops.watchdog import ServiceManager, Watchdog

INTERVAL_S = 10.0


class Checks:
    """Answers to checks, given by the test."""

    def __init__(self) -> None:
        self.made = 0
        self.answer: asyncio.Future[str] | None = None

    async def check(self) -> str:
        self.made += 1
        return "" if self.answer is None else await self.answer

    async def serving(self) -> None:
        """Do nothing: there is no predecessor."""


async def test_it_checks_no_more_once_the_socket_is_handed_over() -> None:
    clock, manager, checks = VirtualClock(), ServiceManager({}), Checks()
    watchdog = Watchdog(manager, checks.check, clock, checks.serving)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watchdog.run())
        await clock.advance(3 * INTERVAL_S)
        assert checks.made == 4
        manager.hand_over(1)
        await clock.advance(10 * INTERVAL_S)

        assert checks.made == 4
        assert not task.done()
        task.cancel()


async def test_a_check_that_the_hand_over_overtakes_is_ignored() -> None:
    clock, manager, checks = VirtualClock(), ServiceManager({}), Checks()
    watchdog = Watchdog(manager, checks.check, clock, checks.serving)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watchdog.run())
        await clock.advance(0)
        checks.answer = asyncio.get_running_loop().create_future()
        await clock.advance(INTERVAL_S)
        manager.hand_over(1)
        checks.answer.set_result("no response within 5 s")
        await clock.advance(10 * INTERVAL_S)

        assert (checks.made, watchdog.failing()) == (2, "")
        task.cancel()
