"""A pool of linked renderers: started on demand, stopped when idle, and replaced after a failure.

A chart that never finishes delays no other module (see ``lanes``).
"""

import asyncio
from typing import Self

from governor.errors import GovernorError
from governor.reconciler.render import linked
from governor.reconciler.render.lanes import Lanes
from governor.reconciler.render.linked import EXITED, Limits, RendererProcess
from governor.reconciler.render.request import Rendered, Request


class RenderPool:
    """Renders charts in several processes; an asynchronous context manager that stops them in the end."""

    def __init__(
        self,
        program: str,
        *,
        size: int = 2,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        idle_s: float = 60.0,
    ) -> None:
        self._lane = _Lane(program, limits, size, idle_s)
        self._slow_lane = _Lane(program, limits, 1, idle_s)
        self._lanes = Lanes()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lane.close()
        await self._slow_lane.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that wait for work."""
        return (*self._lane.pids, *self._slow_lane.pids)

    async def render(self, request: Request) -> Rendered:
        """Render a chart in the next free process."""
        with self._lanes.choose(request) as is_slow:
            return await (self._slow_lane if is_slow else self._lane).render(request)


class _Lane:
    """A bounded number of processes, each of which renders one chart at a time."""

    def __init__(self, program: str, limits: Limits, size: int, idle_s: float) -> None:
        self._program = program
        self._limits = limits
        self._idle_s = idle_s
        self._slots = asyncio.Semaphore(size)
        self._idle: dict[RendererProcess, asyncio.TimerHandle] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(each.pid for each in self._idle)

    async def render(self, request: Request) -> Rendered:
        async with self._slots:
            idle = self._take()
            if idle is not None:
                try:
                    return await self._render_in(idle, request)
                except GovernorError as error:
                    # One that ended while it was idle may be noticed only now.
                    if error.code != EXITED or idle.has_answered:
                        raise
            return await self._render_in(await linked.start(self._program, self._limits), request)

    async def _render_in(self, process: RendererProcess, request: Request) -> Rendered:
        try:
            return await process.render(request)
        finally:
            if process.is_usable:
                self._put_back(process)
            else:
                await process.stop()

    def _take(self) -> RendererProcess | None:
        """Return the process that was used last, so that those in excess become idle."""
        while self._idle:
            process, timer = self._idle.popitem()
            timer.cancel()
            if process.is_running:
                return process
            process.kill()
        return None

    def _put_back(self, process: RendererProcess) -> None:
        timer = asyncio.get_running_loop().call_later(self._idle_s, self._stop_idle, process)
        self._idle[process] = timer

    def _stop_idle(self, process: RendererProcess) -> None:
        del self._idle[process]
        process.kill()

    async def close(self) -> None:
        while process := self._take():
            await process.stop()
