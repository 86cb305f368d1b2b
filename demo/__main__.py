"""``make demo``: run the scenario, print what each step observed, clean up.

The exit code is 0 only if every step observed what it expects. KEEP=1 keeps everything running until Ctrl-C.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from demo import broken_path, good_path
from demo.broken_path import BROKEN_PATH
from demo.good_path import GOOD_PATH
from demo.steps import EXIT_FAILED, Scenario, keep_if_asked, run_demo, run_steps
from demo.world import World
from testbed.recipes import provide

STEPS = (*GOOD_PATH, *BROKEN_PATH)


def main() -> int:
    """Run the demo and return its exit code."""
    binaries = provide(["redis", "daprd"])
    return run_demo(lambda directory: _run(directory, binaries))


async def _run(directory: Path, binaries: dict[str, Path]) -> int:
    async with World(directory, binaries) as world:
        scenario = Scenario(world)
        if not await run_steps(STEPS, scenario):
            return EXIT_FAILED
        await keep_if_asked(lambda: _hints(world))
    print(f"\n{good_path.result(scenario)}; {broken_path.result(scenario)}.")
    return 0


def _hints(world: World) -> Iterator[str]:
    yield f"export GOVERNOR_SERVER={world.server.url} GOVERNOR_TOKEN_FILE={world.server.admin_token_file}"
    yield ".venv/bin/governor get runtimes"
    for runtime in world.runtimes:
        yield f"curl {runtime.app.url}/order      # {runtime.name}, logs in {runtime.agent.directory}"


if __name__ == "__main__":
    sys.exit(main())
