"""Run the benchmark and print a Markdown table; progress goes to standard error.

make bench-kube        (or: python -m bench.kube --quick, or --long for half an hour)
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from contextlib import nullcontext
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.kube.cluster import Cluster
from bench.kube.replay import Replay
from bench.kube.report import Samples, table
from bench.kube.sample import APPLIED, CACHED, WATCHED
from bench.kube.tasks import LIBRARIES, Task, Usage
from bench.kube.with_governor import UNLIMITED
from bench.machine import machine
from governor.kube.client import Client, Transport
from governor.kube.config.kubeconfig import load
from testbed.builds.kubernetes import VERSION
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from toolchain import cache
from toolchain.repository import REPOSITORY, VENV_PYTHON
from toolchain.wheels import from_wheels

PROGRAMS: Final = ("etcd", "kube-apiserver", "kubectl")
CONCURRENCY: Final = 16
LIVE: Final = "watch"
"""The task during which objects change."""
TASK_TIMEOUT_S: Final = 600.0
_SHARED_PACKAGES: Final = ("aiohttp", "msgspec", "uvloop")
_OTHER_PACKAGES: Final = ("kubernetes-asyncio", "lightkube", "httpx2")


class Sizes(msgspec.Struct, frozen=True):
    """Number of rounds, and the amount of work in each."""

    rounds: int = 3
    requests: int = 500
    live_events: int = 750
    replayed_events: int = 5000
    objects: int = 5000
    clusters: int = 500


QUICK: Final = Sizes(rounds=1, requests=100, live_events=150, replayed_events=1000, objects=1000, clusters=100)
LONG: Final = Sizes(5, requests=1000, live_events=1500, replayed_events=10_000, objects=10_000, clusters=1000)


def tasks(sizes: Sizes, real: Path, replayed: tuple[Path, ...]) -> dict[str, Task]:
    """Return the tasks by name."""
    one, many = (str(real),), tuple(map(str, replayed))
    return {
        "apply": Task("apply", one, APPLIED, sizes.requests // 2),
        "apply-16": Task("apply", one, APPLIED, sizes.requests, CONCURRENCY),
        "get": Task("get", one, APPLIED, sizes.requests // 2),
        "get-16": Task("get", one, APPLIED, sizes.requests, CONCURRENCY),
        LIVE: Task("watch", one, WATCHED, sizes.live_events),
        "replay": Task("watch", many[:1], WATCHED, sizes.replayed_events),
        "cache": Task("cache", one, CACHED, sizes.objects),
        "connect": Task("connect", many, APPLIED, sizes.clusters, CONCURRENCY),
    }


async def measure(sizes: Sizes, packages: Path, directory: Path) -> Samples:
    """Start and fill the servers, and run all rounds."""
    async with ControlPlane(provide(PROGRAMS), directory / "control-plane") as plane, Transport() as transport:
        cluster = Cluster(Client(transport, load(plane.kubeconfig), UNLIMITED))
        report_progress(f"filling a cluster with {sizes.objects} objects, which takes a minute or two")
        await cluster.fill(sizes.objects)
        recording = await cluster.record()
        print(f"A cached object has {await cluster.cached_bytes()} bytes, an event {recording.event_bytes}.")
        async with Replay(recording, directory / "clusters", 1 + sizes.clusters) as replay:
            return await run_rounds(sizes.rounds, tasks(sizes, plane.kubeconfig, replay.kubeconfigs), cluster, packages)


async def run_rounds(rounds: int, planned: dict[str, Task], cluster: Cluster, packages: Path) -> Samples:
    """Run every task with every library in each round."""
    samples: dict[str, dict[str, list[Usage]]] = {name: {library: [] for library in LIBRARIES} for name in planned}
    runs = [(number, name, library) for number in range(rounds) for name in planned for library in order(number)]
    for number, name, library in runs:
        report_progress(f"round {number + 1} of {rounds}: {name} with {library}")
        async with cluster.changing() if name == LIVE else nullcontext():
            samples[name][library].append(await run(planned[name], library, packages))
    return samples


def order(number: int) -> tuple[str, ...]:
    """Return the libraries in this round's order, which rotates because the first run may find another server state."""
    first = number % len(LIBRARIES)
    return (*LIBRARIES[first:], *LIBRARIES[:first])


async def run(task: Task, library: str, packages: Path) -> Usage:
    """Run one task in a new process; only the other libraries' processes have their packages in the path."""
    environment = dict(os.environ) if library == LIBRARIES[0] else os.environ | {"PYTHONPATH": str(packages)}
    argv = [str(VENV_PYTHON), "-m", "bench.kube.worker", library]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, cwd=REPOSITORY, env=environment)
    try:
        async with asyncio.timeout(TASK_TIMEOUT_S):
            output, _ = await process.communicate(msgspec.json.encode(task))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{task.operation} with {library} failed with exit status {process.returncode}")
    return msgspec.json.decode(output, type=Usage)


def report_progress(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def environment_summary(packages: Path) -> str:
    """Describe versions and machine; ``packages`` is the directory of the other libraries."""
    found = {each.name.lower().replace("_", "-"): each.version for each in distributions(path=[str(packages)])}
    versions = [f"Kubernetes {VERSION}", f"Python {platform.python_version()}"]
    versions += [f"{name} {version(name)}" for name in _SHARED_PACKAGES]
    versions += [f"{name} {found[name]}" for name in _OTHER_PACKAGES]
    return f"{', '.join(versions)}. {machine()}"


def main() -> None:
    """Parse the options, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help="one small round, to check that the benchmark runs")
    amount.add_argument("--long", action="store_true", help="more and larger rounds, for figures to publish")
    options = parser.parse_args()
    packages = cache.provide(from_wheels("bench", "lightkube")).parent
    sizes = QUICK if options.quick else LONG if options.long else Sizes()
    print(environment_summary(packages), f"{sizes.rounds} rounds.", flush=True)
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as directory:
        samples = uvloop.run(measure(sizes, packages, Path(directory)))
    print("", *table(samples), sep="\n")


if __name__ == "__main__":
    main()
