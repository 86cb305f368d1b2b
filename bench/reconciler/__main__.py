"""Measure a thousand modules, print a table in Markdown and draw the chart of the documentation; progress goes to
standard error.

make bench-reconciler        (or: python -m bench.reconciler --modules 10 --idle 2)

All modules share one chart with seven objects (bench/reconciler/seven-objects), and each has one Installation. On a new
kube-apiserver the benchmark installs all, changes one value of all, which is in a label of every object, leaves the
reconciler idle, and kills and restarts it, at last as a process that only watches. A rollout ends when all
ModuleInstances are ready and a watch has shown all objects with the new value. CPU time includes children that have
exited; memory is that of all processes at once, sampled four times per second.

Another controller that is running in a cluster of its own is measured after ours, with the same chart:

    make bench-reconciler PEER=KUBECONFIG OPTIONS="--peer-pid=PID --peer-template=FILE"

KUBECONFIG is an administrator's. For each release the benchmark applies the objects of FILE, with $name, $namespace,
$number and $revision replaced, and later applies them again with another $revision; the default is a HelmRelease of
Flux, for which an OCIRepository called seven-objects must exist in namespace bench (or --peer-namespace). It waits
until a watch has shown all objects of the chart, by their labels, with that revision. Without --peer-pid only the time
and the requests are measured. The releases stay; delete them before the next run.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from bench.machine import load, machine
from bench.reconciler import peer
from bench.reconciler.chart import chart
from bench.reconciler.hub import prepared_hub
from bench.reconciler.report import PUBLISHED, Figures, details, table
from bench.reconciler.rollouts import Subject, rest, roll_out
from bench.reconciler.watched import NAMESPACE
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from toolchain.errors import TestbedError
from toolchain.repository import REPOSITORY

CHART: Final = REPOSITORY / "docs" / "benchmarks-reconciler.svg"
RENDERERS: Final = {"linked": "renderer", "helm": "helm"}
FIRST, SECOND = "first", "second"


async def measure(directory: Path, modules: int, idle_s: float, renderer: str) -> Figures:
    """Measure our reconciler on a new control plane."""
    programs = provide(["etcd", "kube-apiserver", "kubectl", RENDERERS[renderer]])
    async with (
        ControlPlane(programs, directory / "control-plane") as plane,
        prepared_hub(directory, plane, programs[RENDERERS[renderer]], modules) as hub,
    ):
        figures = await _measure(hub, modules, idle_s)
        log("restarting the reconciler")
        figures = msgspec.structs.replace(figures, restart=await hub.restart(modules))
        log("resting with workers at zero")
        await hub.watch_only()
        return msgspec.structs.replace(figures, watching=await rest(hub, idle_s, log))


async def measure_peer(options: argparse.Namespace) -> Figures:
    """Measure another controller."""
    setup = peer.Setup(options.peer, tuple(options.peer_pid), options.peer_template, options.peer_namespace)
    async with peer.peer(setup) as subject:
        return await _measure(subject, options.modules, options.idle)


async def _measure(subject: Subject, modules: int, idle_s: float) -> Figures:
    log(f"installing {modules:,} modules")
    install = await roll_out(subject, modules, FIRST, log)
    log(f"took {install.seconds:.1f} s; changing one value of each")
    change = await roll_out(subject, modules, SECOND, log)
    log(f"took {change.seconds:.1f} s")
    return Figures(modules, install, change, await rest(subject, idle_s, log))


async def run(options: argparse.Namespace, directory: Path) -> tuple[Figures, Figures | None]:
    """Measure ours, then the peer if there is one."""
    ours = await measure(directory, options.modules, options.idle, options.renderer)
    return ours, await measure_peer(options) if options.peer else None


def log(text: str) -> None:
    """Write a progress message to standard error."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=PUBLISHED)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds in which nothing is requested")
    parser.add_argument("--renderer", choices=RENDERERS, default="linked")
    parser.add_argument("--peer", type=Path, metavar="KUBECONFIG", help="the cluster of another controller")
    parser.add_argument("--peer-pid", type=int, action="append", default=[], help="its process; may be repeated")
    parser.add_argument("--peer-template", type=Path, default=peer.TEMPLATE, help="what requests one release")
    parser.add_argument("--peer-namespace", default=NAMESPACE, help="namespace of its releases")
    parser.add_argument("--directory", type=Path, help="directory to keep, with the logs of all servers")
    return parser.parse_args()


def main() -> int:
    """Measure and print; return the exit status."""
    options = parse()
    where, began_s = machine(), time.monotonic()
    print(where, flush=True)
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as temporary:
        try:
            ours, other = asyncio.run(run(options, options.directory or Path(temporary)))
        except TestbedError as error:
            log(str(error))
            return 1
    print("", *table(ours, other, options.renderer), "", *details(ours), sep="\n")
    print(f"\nTook {time.monotonic() - began_s:.0f} s, load {load():.1f} at the end.")
    if options.modules == PUBLISHED:
        CHART.write_text(chart(ours, other, options.renderer, f"make bench-reconciler. {where}"), encoding="utf-8")
        log(f"the chart is in {CHART}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
