"""How a demo runs: named steps over a scenario that print what they observed, and a world that is cleaned up."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import aiohttp
import msgspec

from governor.errors import GovernorError
from toolchain.errors import TestbedError

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130

WorldT = TypeVar("WorldT")


class NotObservedError(AssertionError):
    """A step did not observe what it expects."""


class Scenario(msgspec.Struct, Generic[WorldT]):
    """The running programs and the values that steps pass on."""

    world: WorldT
    revision: int = 0
    sidecars: dict[str, int | str] = {}
    """The sidecar of each runtime: the pid of its process, or the uid of its pod."""
    seconds: float = 0.0
    protected_requests: int = 0
    rollback_seconds: float = 0.0


class Step(msgspec.Struct, Generic[WorldT], frozen=True):
    """One step: its name, its title, and a function that runs it and returns the lines to print."""

    name: str
    title: str
    run: Callable[[Scenario[WorldT]], Coroutine[Any, Any, list[str]]]


def expect(what: str, observed: object, expected: object) -> None:
    """Raise if an observation is not the expected one."""
    if observed != expected:
        raise NotObservedError(f"{what}: expected {expected!r}, observed {observed!r}")


def run_demo(run: Callable[[Path], Coroutine[Any, Any, int]]) -> int:
    """Run a demo in a temporary directory, which is kept for its logs if a step fails; return the exit code."""
    directory = Path(tempfile.mkdtemp(prefix="governor-demo-"))
    try:
        code = asyncio.run(_until_signal(run(directory)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\nInterrupted; all programs were stopped.")
        code = EXIT_INTERRUPTED
    except TestbedError as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        code = EXIT_FAILED
    if code == EXIT_FAILED:
        print(f"All programs were stopped; their logs are in {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory)
    return code


async def _until_signal(run: Coroutine[Any, Any, int]) -> int:
    """Clean up on SIGTERM as on Ctrl-C."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run


async def run_steps(steps: Sequence[Step[WorldT]], scenario: Scenario[WorldT]) -> bool:
    """Run the steps in their order, and return whether each of them observed what it expects."""
    for number, step in enumerate(steps, 1):
        print(f"\n{number}/{len(steps)} {step.title}", flush=True)
        if not await _run_step(step, scenario):
            return False
    return True


async def _run_step(step: Step[WorldT], scenario: Scenario[WorldT]) -> bool:
    began = time.monotonic()
    try:
        lines = await step.run(scenario)
    except (NotObservedError, GovernorError, TestbedError, aiohttp.ClientError, OSError) as error:
        print(f"    FAILED ({step.name}): {str(error) or type(error).__name__}", file=sys.stderr)
        return False
    for line in lines:
        print(f"    {line}")
    print(f"    ({time.monotonic() - began:.1f} s)", flush=True)
    return True


async def keep_if_asked(hints: Callable[[], Iterable[str]]) -> None:
    """With KEEP=1, print what the user can try, and wait for Ctrl-C, which is the normal end then."""
    if os.environ.get("KEEP") != "1":
        return
    print("\nEverything keeps running. Try:")
    for line in hints():
        print(f"    {line}")
    print("Ctrl-C stops everything.", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    await stop.wait()
