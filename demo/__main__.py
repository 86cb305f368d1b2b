"""``make demo``: run the scenario, print what each step observed, clean up.

The exit code is 0 only if every step observed what it expects. KEEP=1 keeps everything running until Ctrl-C.
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
from demo.scenario import NotObservedError, Scenario, Step
from demo.world import World
from governor.errors import GovernorError
from testbed.recipes import provide
from toolchain.errors import TestbedError

STEPS = (*GOOD_PATH, *BROKEN_PATH)
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the demo in a temporary directory, which is kept for its logs if a step fails; return the exit code."""
    binaries = provide(["redis", "daprd"])
    directory = Path(tempfile.mkdtemp(prefix="governor-demo-"))
    try:
        code = asyncio.run(_run(directory, binaries))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\nInterrupted; all programs were stopped.")
        code = EXIT_INTERRUPTED
    if code == EXIT_FAILED:
        print(f"All programs were stopped; their logs are in {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory)
    return code


async def _run(directory: Path, binaries: dict[str, Path]) -> int:
    _stop_on(signal.SIGTERM)
    async with World(directory, binaries) as world:
        scenario = Scenario(world)
        for number, step in enumerate(STEPS, 1):
            if not await _run_step(number, step, scenario):
                return EXIT_FAILED
        if os.environ.get("KEEP") == "1":
            _show_addresses(scenario)
            await _wait_for_interrupt()
    print(f"\n{good_path.result(scenario)}; {broken_path.result(scenario)}.")
    return 0


def _stop_on(number: signal.Signals) -> None:
    """Clean up on a signal as on Ctrl-C."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _run_step(number: int, step: Step, scenario: Scenario) -> bool:
    print(f"\n{number}/{len(STEPS)} {step.title}", flush=True)
    began = time.monotonic()
    try:
        lines = await step.run(scenario)
    except (NotObservedError, GovernorError, TestbedError) as error:
        print(f"    FAILED ({step.name}): {error}", file=sys.stderr)
        return False
    for line in lines:
        print(f"    {line}")
    print(f"    ({time.monotonic() - began:.1f} s)", flush=True)
    return True


def _show_addresses(scenario: Scenario) -> None:
    world = scenario.world
    print("\nEverything keeps running. Try:")
    print(f"    export GOVERNOR_SERVER={world.server.url} GOVERNOR_TOKEN_FILE={world.server.admin_token_file}")
    print("    .venv/bin/governor get runtimes")
    for runtime in world.runtimes:
        print(f"    curl {runtime.app.url}/order      # {runtime.name}, logs in {runtime.agent.directory}")
    print("Ctrl-C stops everything.", flush=True)


async def _wait_for_interrupt() -> None:
    """Wait for Ctrl-C, which with KEEP=1 is the normal end."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
