"""``make demo-reconciler``: run the scenario in a real cluster, print the State after each step, remove everything.

The exit code is 0 only if every step observed what it expects, and nothing is left on this machine. KEEP=1 keeps
everything running until Ctrl-C.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from demo.node import running_cluster
from demo.reconciler.failure_path import FAILURE_PATH
from demo.reconciler.install_path import INSTALL_PATH
from demo.reconciler.repair_path import REPAIR_PATH
from demo.reconciler.rest_path import REST_PATH
from demo.reconciler.world import World
from demo.steps import EXIT_FAILED, Scenario, keep_if_asked, run_demo, run_steps

STEPS: Final = (*INSTALL_PATH, *REPAIR_PATH, *FAILURE_PATH, *REST_PATH)


def main() -> int:
    """Run the demo and return its exit code."""
    return run_demo(_run)


async def _run(directory: Path) -> int:
    print("Starting an empty cluster ...", flush=True)
    name = "`make demo-reconciler`"
    async with running_cluster(directory / "cluster", name) as cluster, World(cluster, directory) as world:
        is_observed = await run_steps(STEPS, Scenario(world))
        if is_observed:
            await keep_if_asked(lambda: _hints(world))
    if not is_observed:
        return EXIT_FAILED
    print("\nThe cluster reconciled itself from empty to three modules and back; each step was observed.")
    print("The cluster is removed, and nothing is left of it on this machine.")
    return 0


def _hints(world: World) -> Iterator[str]:
    kubectl = world.cluster.facts["kubectl"]
    yield f"export KUBECONFIG={world.cluster.kubeconfig}"
    yield f"{kubectl} get governor --namespace runtime-governor"
    yield ".venv/bin/governor cluster describe"
    yield f"{kubectl} get pods --all-namespaces"


if __name__ == "__main__":
    sys.exit(main())
