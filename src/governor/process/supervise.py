"""One supervised task group per program: start in order, stop in reverse order within a deadline, one exit code.

A component is an ``async def run()`` that ends only by cancellation. SIGTERM and SIGINT stop the program, and so does
SIGHUP unless it is ignored (nohup); a second signal stops it at once. Components are created in the program's ``main``.
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

_FINAL_GRACE_S: Final = 1.0
"""Time for clean-up once all components are cancelled."""

_log = logging.get_logger(__name__)


class Component(NamedTuple):
    """A part of a program, with its name for logs and errors."""

    name: str
    run: Callable[[], Awaitable[None]]


class ComponentEndedError(Exception):
    """A component of a group has failed, which is the cause of this error, or has returned."""

    def __init__(self, name: str) -> None:
        super().__init__(f"component {name} ended")
        self.name = name


class Phase(enum.StrEnum):
    """Phase of a program's lifecycle."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Lifecycle:
    """The current phase of the program; only ``run_program`` changes it."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING

    def not_ready(self) -> str:
        """Return why the program is not ready, or ``""``; a check for ``Checks.ready``."""
        return "" if self.phase is Phase.RUNNING else f"the program is {self.phase}"


def main(program: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run an async program on uvloop and return its exit code."""
    # Imported here so that importing a component does not load uvloop.
    import uvloop  # noqa: PLC0415

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(program())


def exit_at_once(code: int) -> NoReturn:
    """End the process without any clean-up other than writing what it has logged."""
    logging.flush()
    os._exit(code)


async def run_program(
    components: Sequence[Component],
    *,
    grace_s: float,
    lifecycle: Lifecycle | None = None,
    exit_process: Callable[[int], NoReturn] = exit_at_once,
) -> int:
    """Run ``components`` until a signal arrives or one of them ends, then stop them in reverse order.

    Return 0 if a signal stopped the program and all components stopped cleanly, otherwise 1; the reason is logged. If
    components ignore their cancellation for longer than ``grace_s``, ``exit_process`` ends the process.
    """
    run = _Run(lifecycle or Lifecycle())
    with _signals(run):
        async with asyncio.TaskGroup() as group:
            tasks = [(each.name, group.create_task(run.watch(each), name=each.name)) for each in components]
            run.lifecycle.phase = Phase.RUNNING
            await run.stop_requested.wait()
            run.lifecycle.phase = Phase.STOPPING
            stuck = await _stop(tasks, run, grace_s)
            if stuck:
                run.log_stuck(stuck, grace_s)
                exit_process(EXIT_FAILED)
    _log.info("stopped", exit_code=run.exit_code)
    return run.exit_code


async def run_group(components: Sequence[Component]) -> None:
    """Run ``components`` until cancelled or until one of them ends, then stop them in reverse order.

    Raise ComponentEndedError with the name of the one that ended, for a component of ``run_program`` that consists of
    others.
    """
    tasks = [asyncio.create_task(_as_coroutine(each), name=each.name) for each in components]
    ended = set[asyncio.Task[None]]()
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait({task})
        errors = {each: None if each.cancelled() else each.exception() for each in tasks}
        for each, error in sorted(errors.items(), key=lambda item: item[0] not in ended):
            if error is not None or each in ended:
                raise ComponentEndedError(each.get_name()) from error


async def _as_coroutine(component: Component) -> None:
    await component.run()


class _Run:
    """State of one run of a program."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.stop_requested = asyncio.Event()
        self.hurry = asyncio.Event()
        self.exit_code = EXIT_STOPPED
        self._signalled = False

    def on_signal(self, number: signal.Signals) -> None:
        if not self._signalled:
            _log.info("stopping", signal=number.name)
            self._signalled = True
            self.stop_requested.set()
        elif not self.hurry.is_set():
            _log.warning("stopping at once after a second signal", signal=number.name)
            self.hurry.set()

    def log_stuck(self, stuck: list[str], grace_s: float) -> None:
        """Log the components that did not stop."""
        if self.hurry.is_set():
            _log.warning("stopped at once, components were interrupted", components=stuck, exit_code=EXIT_FAILED)
        else:
            _log.error("components did not stop in time", components=stuck, grace_s=grace_s)

    async def watch(self, component: Component) -> None:
        """Run one component; its end stops the others in order, not all at once as in a bare task group."""
        try:
            await component.run()
        except asyncio.CancelledError:
            if self.stop_requested.is_set() or being_cancelled():
                raise
            self._failed("component was cancelled unexpectedly", component.name)
        except Exception as error:  # noqa: BLE001 - any failure stops the program and is logged
            self._ended(component.name, error)
        else:
            if not self.stop_requested.is_set():
                self._ended(component.name, None)

    def _ended(self, name: str, error: BaseException | None) -> None:
        match error:
            case None:
                self._failed("component ended unexpectedly", name)
            case ComponentEndedError():
                self._ended(error.name, error.__cause__)
            case GovernorError():
                self._failed("component failed", name, error=str(error), kind=error.kind, code=error.code)
            case _:
                self._failed("component failed", name, exc_info=error)

    def _failed(self, event: str, name: str, **details: object) -> None:
        _log.error(event, component=name, **details)
        self.exit_code = EXIT_FAILED
        self.stop_requested.set()


def being_cancelled() -> bool:
    """Whether the current task is being cancelled."""
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
    """Cancel the tasks one by one until the deadline, then all. Return the names of those still running."""
    deadline = asyncio.get_running_loop().time() + grace_s
    hurried = asyncio.create_task(run.hurry.wait())
    for _, task in reversed(tasks):
        task.cancel()
        await _wait_for(task, hurried, deadline)
    hurried.cancel()
    remaining = {task for _, task in tasks if not task.done()}
    if remaining:
        await asyncio.wait(remaining, timeout=_FINAL_GRACE_S)
    return [name for name, task in tasks if not task.done()]


async def _wait_for(task: asyncio.Task[None], hurried: "asyncio.Task[bool]", deadline: float) -> None:
    remaining_s = max(0.0, deadline - asyncio.get_running_loop().time())
    await asyncio.wait({task, hurried}, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
