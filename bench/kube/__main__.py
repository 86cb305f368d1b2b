"""Measure, and print a table in Markdown; progress goes to standard error.

make bench-kube        (or: python -m bench.kube --quick)
"""

import argparse
import asyncio
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.kube.cluster import Cluster
from bench.kube.facts import facts
from bench.kube.ours import UNLIMITED
from bench.kube.replay import Replay
from bench.kube.report import Samples, table
from bench.kube.sample import APPLIED, HELD, WATCHED
from bench.kube.tasks import LIBRARIES, Task, Usage
from governor.kube.client import Client, Transport
from governor.kube.config.kubeconfig import load
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from toolchain import cache
from toolchain.wheels import REPOSITORY, VENV_PYTHON, from_wheels

PROGRAMS: Final = ("etcd", "kube-apiserver", "kubectl")
AT_ONCE: Final = 16
LIVE: Final = "watch"
"""The measure during which objects change."""
TASK_WITHIN_S: Final = 600.0


class Sizes(msgspec.Struct, frozen=True):
    """How much is done in one round."""

    requests: int = 1000
    live_events: int = 1500
    replayed_events: int = 10_000
    objects: int = 10_000
    clusters: int = 1000


QUICK: Final = Sizes(requests=100, live_events=150, replayed_events=1000, objects=1000, clusters=100)


def tasks(sizes: Sizes, real: Path, replayed: tuple[Path, ...]) -> dict[str, Task]:
    """What is measured, by name."""
    one, many = (str(real),), tuple(map(str, replayed))
    return {
        "apply": Task("apply", one, APPLIED, sizes.requests // 2),
        "apply-16": Task("apply", one, APPLIED, sizes.requests, AT_ONCE),
        "get": Task("get", one, APPLIED, sizes.requests // 2),
        "get-16": Task("get", one, APPLIED, sizes.requests, AT_ONCE),
        LIVE: Task("watch", one, WATCHED, sizes.live_events),
        "replay": Task("watch", many[:1], WATCHED, sizes.replayed_events),
        "hold": Task("hold", one, HELD, sizes.objects),
        "connect": Task("connect", many, APPLIED, sizes.clusters, AT_ONCE),
    }


async def measure(rounds: int, sizes: Sizes, packages: Path, directory: Path) -> Samples:
    """Start the servers, fill them, and take all rounds."""
    async with ControlPlane(provide(PROGRAMS), directory / "control-plane") as plane, Transport() as transport:
        cluster = Cluster(Client(transport, load(plane.kubeconfig), UNLIMITED))
        say(f"filling a cluster with {sizes.objects} objects, which takes a minute or two")
        await cluster.fill(sizes.objects)
        recording = await cluster.record()
        print(f"An object that is held has {await cluster.held_bytes()} bytes, an event {recording.event_bytes}.")
        async with Replay(recording, directory / "clusters", 1 + sizes.clusters) as replay:
            return await take(rounds, tasks(sizes, plane.kubeconfig, replay.kubeconfigs), cluster, packages)


async def take(rounds: int, planned: dict[str, Task], cluster: Cluster, packages: Path) -> Samples:
    """In each round every task, each with one library after the other."""
    samples: dict[str, dict[str, list[Usage]]] = {name: {library: [] for library in LIBRARIES} for name in planned}
    turns = [(number, name, library) for number in range(rounds) for name in planned for library in order(number)]
    for number, name, library in turns:
        say(f"round {number + 1} of {rounds}: {name} with {library}")
        async with cluster.changing() if name == LIVE else nullcontext():
            samples[name][library].append(await run(planned[name], library, packages))
    return samples


def order(number: int) -> tuple[str, ...]:
    """Another library begins each round: the first of a task may find the servers in another state than the others."""
    first = number % len(LIBRARIES)
    return (*LIBRARIES[first:], *LIBRARIES[:first])


async def run(task: Task, library: str, packages: Path) -> Usage:
    """One task in a fresh process; only the others' processes see the others' packages."""
    surroundings = dict(os.environ) if library == LIBRARIES[0] else os.environ | {"PYTHONPATH": str(packages)}
    argv = [str(VENV_PYTHON), "-m", "bench.kube.worker", library]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, cwd=REPOSITORY, env=surroundings)
    try:
        async with asyncio.timeout(TASK_WITHIN_S):
            printed, _ = await process.communicate(msgspec.json.encode(task))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{task.act} with {library} failed with exit status {process.returncode}")
    return msgspec.json.decode(printed, type=Usage)


def say(text: str) -> None:
    """To whoever waits."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything in a round: to see that it works")
    options = parser.parse_args()
    packages = cache.provide(from_wheels("bench", "lightkube")).parent
    print(facts(packages), f"{options.rounds} rounds.", flush=True)
    sizes = QUICK if options.quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as directory:
        samples = uvloop.run(measure(options.rounds, sizes, packages, Path(directory)))
    print("", *table(samples), sep="\n")


if __name__ == "__main__":
    main()
