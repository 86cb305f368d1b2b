"""``make demo-kubernetes``: run the scenario in a real cluster, print what each step observed, remove everything.

The exit code is 0 only if every step observed what it expects, and nothing is left on this machine. KEEP=1 keeps
everything running until Ctrl-C.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from demo.cluster import broken_path, good_path
from demo.cluster.binding_path import BINDING_PATH
from demo.cluster.broken_path import BROKEN_PATH
from demo.cluster.good_path import GOOD_PATH
from demo.cluster.restart_path import RESTART_PATH
from demo.cluster.world import World
from demo.node import running_cluster
from demo.steps import EXIT_FAILED, Scenario, keep_if_asked, run_demo, run_steps
from testbed.builds.dapr import VERSION
from testbed.cluster.dapr import Dapr

STEPS: Final = (*GOOD_PATH, *BROKEN_PATH, *RESTART_PATH, *BINDING_PATH)
_INTRODUCTION: Final = """\
One machine has one node, so two namespaces with separate agents, identities and permissions stand for the two clusters.
Starting a cluster with Dapr, which takes half a minute ..."""


def main() -> int:
    """Run the demo and return its exit code."""
    return run_demo(_run)


async def _run(directory: Path) -> int:
    print(_INTRODUCTION, flush=True)
    async with (
        running_cluster(directory / "cluster", "`make demo-kubernetes`") as cluster,
        World(cluster, directory) as world,
    ):
        await Dapr(cluster).bring_to(VERSION)
        scenario = Scenario(world)
        is_observed = await run_steps(STEPS, scenario)
        if is_observed:
            await keep_if_asked(lambda: _hints(world))
    if not is_observed:
        return EXIT_FAILED
    print(f"\n{good_path.result(scenario)}; {broken_path.result(scenario)}.")
    print("The cluster is removed, and nothing is left of it on this machine.")
    return 0


def _hints(world: World) -> Iterator[str]:
    access = f"GOVERNOR_TOKEN_FILE={world.directory}/admin.token GOVERNOR_CA_FILE={world.directory}/authority.crt"
    yield f"export KUBECONFIG={world.cluster.kubeconfig} {access} GOVERNOR_SERVER={world.url}"
    yield ".venv/bin/governor get runtimes"
    yield f"{world.cluster.facts['kubectl']} get runtimestatuses --all-namespaces"
    for runtime in world.runtimes:
        yield f"curl {runtime.app.url}/order      # {runtime.name}"


if __name__ == "__main__":
    sys.exit(main())
