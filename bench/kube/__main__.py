"""Run the benchmark, print Markdown tables and draw the chart of the documentation; progress goes to standard error.

make bench-kube        (or: python -m bench.kube --quick, or --long)
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.kube.chart import chart
from bench.kube.cluster import Cluster
from bench.kube.plan import LONG, QUICK, Planned, Sizes, plan, remaining_s, steps
from bench.kube.replay import Replay
from bench.kube.report import Samples, details, headlines, shares, tuned
from bench.kube.tasks import OURS, Task, Usage, variant_of
from bench.kube.with_governor import UNLIMITED
from bench.machine import cpu_seconds, load, machine
from governor.kube.client import Client, Transport
from governor.kube.config.kubeconfig import load as load_kubeconfig
from testbed.builds.kubernetes import CLIENT_GO_VERSION, CLIENT_GO_WORKER, VERSION
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from toolchain import cache
from toolchain.repository import REPOSITORY, VENV_PYTHON
from toolchain.wheels import from_wheels

PROGRAMS: Final = ("etcd", "kube-apiserver", "kubectl", CLIENT_GO_WORKER)
CHART: Final = REPOSITORY / "docs" / "benchmarks-kube.svg"
TASK_TIMEOUT_S: Final = 300.0
_SHARED_PACKAGES: Final = ("aiohttp", "msgspec", "uvloop")
_OTHER_PACKAGES: Final = ("kubernetes-asyncio", "lightkube", "httpx2")


class Workers:
    """Starts the workers: Python processes, and the program with client-go."""

    def __init__(self, client_go: Path, packages: Path) -> None:
        self._client_go = client_go
        self._packages = packages
        """The directory of the other Python libraries; only their processes have it in the path."""

    async def run(self, task: Task, library: str) -> Usage:
        """Run one task in a new process."""
        pipe = asyncio.subprocess.PIPE
        argv, environment = self._command(library)
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

    def _command(self, library: str) -> tuple[list[str], dict[str, str]]:
        if variant := variant_of(library):
            return [str(self._client_go), variant], dict(os.environ)
        path = {} if library == OURS else {"PYTHONPATH": str(self._packages)}
        return [str(VENV_PYTHON), "-m", "bench.kube.worker", library], os.environ | path


async def measure(sizes: Sizes, packages: Path, directory: Path) -> Samples:
    """Start and fill the servers, and run all rounds."""
    programs = provide(PROGRAMS)
    async with ControlPlane(programs, directory / "control-plane") as plane, Transport() as transport:
        cluster = Cluster(Client(transport, load_kubeconfig(plane.kubeconfig), UNLIMITED))
        report_progress(f"filling a cluster with {sizes.objects} objects, which takes half a minute")
        await cluster.fill(sizes.objects)
        recording = await cluster.record()
        print(f"A cached object has {await cluster.cached_bytes()} bytes, an event {recording.event_bytes}.")
        async with Replay(recording, directory / "clusters", 1 + sizes.clusters) as replay:
            planned = plan(sizes, plane.kubeconfig, replay.kubeconfigs)
            workers = Workers(programs[CLIENT_GO_WORKER], packages)
            return await run_rounds(sizes.rounds, planned, cluster, workers, [each.pid for each in plane.servers])


async def run_rounds(
    rounds: int, planned: Mapping[str, Planned], cluster: Cluster, workers: Workers, servers: Sequence[int]
) -> Samples:
    """Run every task with every library in each round; ``servers`` are the process ids of the real ones."""
    samples: dict[str, dict[str, list[Usage]]] = {
        name: {library: [] for library in each.libraries} for name, each in planned.items()
    }
    all_steps, began_s = list(steps(rounds, planned)), time.monotonic()
    for done, step in enumerate(all_steps):
        left_s = remaining_s(all_steps, done, time.monotonic() - began_s)
        report_progress(f"round {step.round + 1} of {rounds}: {step.title} (about {left_s:.0f} s left)")
        began_cpu_s = sum(map(cpu_seconds, servers))
        async with cluster.changing() if step.is_live else nullcontext():
            usages = await asyncio.gather(*(workers.run(planned[name].task, library) for name, library in step.runs))
        used_cpu_s = sum(map(cpu_seconds, servers)) - began_cpu_s
        for (name, library), usage in zip(step.runs, usages, strict=True):
            share = usage.count / (usage.count + planned[name].task.warm_up)
            samples[name][library].append(msgspec.structs.replace(usage, server_cpu_seconds=used_cpu_s * share))
    return samples


def report_progress(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def versions(packages: Path) -> str:
    """Return a sentence with all versions; ``packages`` is the directory of the other libraries."""
    found = {each.name.lower().replace("_", "-"): each.version for each in distributions(path=[str(packages)])}
    names = [f"Kubernetes {VERSION}", f"client-go {CLIENT_GO_VERSION}", f"Python {platform.python_version()}"]
    names += [f"{name} {version(name)}" for name in _SHARED_PACKAGES]
    names += [f"{name} {found[name]}" for name in _OTHER_PACKAGES]
    return f"{', '.join(names)}."


def main() -> None:
    """Parse the options, measure, print the tables and draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help="one small round without chart, to check that it runs")
    amount.add_argument("--long", action="store_true", help="more and larger rounds, for figures to publish")
    options = parser.parse_args()
    packages = cache.provide(from_wheels("bench", "lightkube")).parent
    sizes = QUICK if options.quick else LONG if options.long else Sizes()
    where, began_s = machine(), time.monotonic()
    print(versions(packages), where, f"{sizes.rounds} rounds.", flush=True)
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as directory:
        samples = uvloop.run(measure(sizes, packages, Path(directory)))
    print(f"Took {time.monotonic() - began_s:.0f} s, load {load():.1f} at the end.")
    for table in (headlines, details, shares, tuned):
        print("", *table(samples), sep="\n")
    if not options.quick:
        CHART.write_text(chart(samples, f"{sizes.rounds} rounds of make bench-kube. {where}"), encoding="utf-8")
        report_progress(f"the chart is in {CHART}")


if __name__ == "__main__":
    main()
