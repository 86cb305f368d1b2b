"""One supervised task group per program: start in order, stop in reverse order within a deadline, one exit code.

A component is an ``async def run()`` that ends only by cancellation. SIGTERM, SIGINT, or SIGHUP at the end of its
terminal unless it was started to outlive that, stops the program; a second signal stops it at once. What the components
do, and making them, is the program's own ``main``.
"""

import asyncio
import contextlib
import enum
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from governor.errors import GovernorError
from governor.process.telemetry import logging

EXIT_STOPPED: Final = 0
EXIT_FAILED: Final = 1

_LAST_S: Final = 1.0
"""What remains for cleaning up once all components are cancelled at the same time."""

_log = logging.get_logger(__name__)


class Component(NamedTuple):
    """A part of a program with the name that logs and errors use."""

    name: str
    run: Callable[[], Awaitable[None]]


class Phase(enum.StrEnum):
    """Where a program is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Lifecycle:
    """The phase of the program, for whoever must show it; only ``run_program`` changes it."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING

    def not_ready(self) -> str:
        """Why no work should come here, or nothing; fits ``Checks.ready``."""
        return "" if self.phase is Phase.RUNNING else f"the program is {self.phase}"


def main(program: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run an async program on uvloop to its end and return its exit code."""
    # Only programs pay for uvloop; whoever imports a component does not.
    import uvloop  # noqa: PLC0415

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(program())


async def run_program(
    components: Sequence[Component],
    *,
    grace_s: float,
    lifecycle: Lifecycle | None = None,
    leave: Callable[[int], NoReturn] = os._exit,
) -> int:
    """Run ``components`` until a signal arrives or one of them ends, then stop them, the last started first.

    Returns 0 after a signal when all stopped cleanly, otherwise 1; the reason is logged. Components that ignore their
    cancellation beyond ``grace_s`` do not keep the program: it ends by ``leave``.
    """
    run = _Run(lifecycle or Lifecycle())
    with _signals(run):
        async with asyncio.TaskGroup() as group:
            tasks = [(each.name, group.create_task(run.watch(each), name=each.name)) for each in components]
            run.lifecycle.phase = Phase.RUNNING
            await run.stop_wanted.wait()
            run.lifecycle.phase = Phase.STOPPING
            stuck = await _stop(tasks, run, grace_s)
            if stuck:
                run.give_up(stuck, grace_s)
                leave(EXIT_FAILED)
    _log.info("stopped", exit_code=run.exit_code)
    return run.exit_code


class _Run:
    """What happened to one program so far."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.stop_wanted = asyncio.Event()
        self.now_wanted = asyncio.Event()
        self.exit_code = EXIT_STOPPED
        self._was_told = False

    def on_signal(self, number: signal.Signals) -> None:
        if not self._was_told:
            _log.info("stopping", signal=number.name)
            self._was_told = True
            self.stop_wanted.set()
        elif not self.now_wanted.is_set():
            _log.warning("stopping at once, as this is the second signal", signal=number.name)
            self.now_wanted.set()

    def give_up(self, stuck: list[str], grace_s: float) -> None:
        """Say why components are left in the middle of their work."""
        if self.now_wanted.is_set():
            _log.warning("stopped at once; components were cut off", components=stuck, exit_code=EXIT_FAILED)
        else:
            _log.error("components did not stop in time", components=stuck, grace_s=grace_s)

    async def watch(self, component: Component) -> None:
        """Run one component; unlike a bare task its end stops the others in order, not all at once."""
        try:
            await component.run()
        except asyncio.CancelledError:
            if self.stop_wanted.is_set() or _cancelling():
                raise
            self._failed("component was cancelled by nobody", component)
        except GovernorError as error:
            self._failed("component failed", component, error=str(error), kind=error.kind, code=error.code)
        except Exception as error:  # noqa: BLE001 - the edge of the program: any failure ends it with a reason
            self._failed("component failed", component, exc_info=error)
        else:
            if not self.stop_wanted.is_set():
                self._failed("component ended by itself", component)

    def _failed(self, what: str, component: Component, **details: object) -> None:
        _log.error(what, component=component.name, **details)
        self.exit_code = EXIT_FAILED
        self.stop_wanted.set()


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextlib.contextmanager
def _signals(run: _Run) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    caught = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        caught.append(signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, run.on_signal, number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


async def _stop(tasks: Sequence[tuple[str, asyncio.Task[None]]], run: _Run, grace_s: float) -> list[str]:
    """Cancel one after the other while time remains, then all at once; the names of those that still run."""
    deadline = asyncio.get_running_loop().time() + grace_s
    hurry = asyncio.create_task(run.now_wanted.wait())
    for _, task in reversed(tasks):
        task.cancel()
        await _ended(task, hurry, deadline)
    hurry.cancel()
    left = {task for _, task in tasks if not task.done()}
    if left:
        await asyncio.wait(left, timeout=_LAST_S)
    return [name for name, task in tasks if not task.done()]


async def _ended(task: asyncio.Task[None], hurry: "asyncio.Task[bool]", deadline: float) -> None:
    remaining_s = max(0.0, deadline - asyncio.get_running_loop().time())
    await asyncio.wait({task, hurry}, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
