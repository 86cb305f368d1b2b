"""``make demo``: play the scenario, say what was observed, clean up.

Exit code 0 only if every step observed what it is about. KEEP=1 leaves everything running until Ctrl-C.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from demo import broken_path, good_path
from demo.broken_path import BROKEN_PATH
from demo.good_path import GOOD_PATH
from demo.scenario import NotObservedError, Step, Story
from demo.world import World
from governor.errors import GovernorError
from testbed.recipes import provide
from toolchain.errors import TestbedError

STEPS = (*GOOD_PATH, *BROKEN_PATH)
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main() -> int:
    """Run in a directory of its own, which stays only when a step failed, for its logs."""
    binaries = provide(["redis", "daprd"])
    directory = Path(tempfile.mkdtemp(prefix="governor-demo-"))
    try:
        code = asyncio.run(_play(directory, binaries))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\nInterrupted; everything was stopped.")
        code = EXIT_INTERRUPTED
    if code == EXIT_FAILED:
        print(f"Everything was stopped; the logs are kept in {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory)
    return code


async def _play(directory: Path, binaries: dict[str, Path]) -> int:
    _stop_on(signal.SIGTERM)
    async with World(directory, binaries) as world:
        story = Story(world)
        for number, step in enumerate(STEPS, 1):
            if not await _step(number, step, story):
                return EXIT_FAILED
        if os.environ.get("KEEP") == "1":
            _show_addresses(story)
            await _interrupted()
    print(f"\n{good_path.result(story)}; {broken_path.result(story)}.")
    return 0


def _stop_on(number: signal.Signals) -> None:
    """Let a termination clean up as Ctrl-C does."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _step(number: int, step: Step, story: Story) -> bool:
    print(f"\n{number}/{len(STEPS)} {step.title}", flush=True)
    began = time.monotonic()
    try:
        lines = await step.run(story)
    except (NotObservedError, GovernorError, TestbedError) as error:
        print(f"    NOT OBSERVED ({step.name}): {error}", file=sys.stderr)
        return False
    for line in lines:
        print(f"    {line}")
    print(f"    ({time.monotonic() - began:.1f} s)", flush=True)
    return True


def _show_addresses(story: Story) -> None:
    world = story.world
    print("\nLeft running. Try:")
    print(f"    export GOVERNOR_SERVER={world.server.url} GOVERNOR_TOKEN_FILE={world.server.admin_token_file}")
    print("    .venv/bin/governor get runtimes")
    for runtime in world.runtimes:
        print(f"    curl {runtime.app.url}/order      # {runtime.name}, logs in {runtime.agent.directory}")
    print("Ctrl-C stops everything.", flush=True)


async def _interrupted() -> None:
    """Wait for Ctrl-C, which here is the normal end."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
