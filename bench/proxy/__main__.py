"""Measure, and print tables in Markdown; progress goes to standard error.

make bench-proxy        (or: python -m bench.proxy --quick --runtime fake)

Another proxy is given as NAME[+go|+python|+three][@containerd|@kubelet]=SOCKET,PID. It serves on SOCKET in front of the
runtime whose socket is printed, with the plugins of the directory that is printed. It has two minutes to start serving,
so it can be started after the bench; with --directory all paths are known in advance:

    (until [ -S /tmp/b/fake/fake-runtime.sock ]; do sleep 0.1; done; exec PROXY ...) &
    python -m bench.proxy --directory /tmp/b "PROXY=/tmp/proxy.sock,$!"
"""

import argparse
import platform
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Final

import uvloop

from bench.machine import machine
from bench.proxy import docker, startups
from bench.proxy.environment import Sizes, containerd, environment, fake_runtime
from bench.proxy.headlines import chart, headlines
from bench.proxy.headlines import table as headline_table
from bench.proxy.plugins import plugin_directories
from bench.proxy.report import added, memory_table, peers_of, processor, ratios, slowest, targets
from bench.proxy.rounds import run_rounds
from bench.proxy.routes import RUNTIMES, Route, Runtime, parse_peer
from testbed.builds.containerd import VERSION
from toolchain.repository import REPOSITORY

TITLES: Final = {"fake": "a runtime that answers at once", "containerd": f"containerd {VERSION}"}
CHART: Final = REPOSITORY / "docs" / "benchmarks-proxy.svg"
PUBLISHED: Final = 10
"""Fewer rounds draw no chart."""
QUICK: Final = Sizes(calls=20, lifecycles=1)
START: Final = {"fake": fake_runtime, "containerd": containerd}


async def measure(options: argparse.Namespace, directory: Path) -> None:
    """Measure one runtime after the other."""
    async with plugin_directories(directory) as hooks:
        for name, hook_directory in hooks.items():
            log(f"plugins {name or 'none'}: {hook_directory}")
        for runtime in options.runtime or RUNTIMES:
            peers = [each for each in options.peers if each.runtime == runtime]
            if runtime == "kubelet":
                await show_startups(options, directory, hooks, peers)
            elif runtime == "docker":
                await show_docker(options, directory)
            else:
                await show(runtime, options, directory, hooks, peers)


async def show(
    runtime: Runtime, options: argparse.Namespace, directory: Path, hooks: dict[str, Path], peers: Sequence[Route]
) -> None:
    """Run all rounds with one runtime and print its tables."""
    sizes = QUICK if options.quick else Sizes()
    rng = random.Random(options.seed)
    async with START[runtime](directory) as (socket, cgroup):
        log(f"runtime {runtime}: {socket}")
        async with environment(directory / f"with-{runtime}", socket, cgroup, hooks, peers) as prepared:
            await prepared.check_plugins()
            operations = await prepared.operations(runtime, sizes)
            samples = await run_rounds(options.rounds, operations, prepared.clients, rng, log)
            memory = prepared.memory()
    print(f"\nIn front of {TITLES[runtime]}:")
    figures = [table(samples) for table in (added, ratios, slowest, processor)]
    for table in (*figures, memory_table(memory), targets(samples, memory)):
        show_table(table)
    for peer in peers_of(samples) if runtime == "fake" else ():
        rows = list(headlines(samples, memory, peer))
        show_table(headline_table(rows, peer))
        if options.rounds >= PUBLISHED:
            note = f"{options.rounds} rounds of make bench-proxy. {options.machine}"
            CHART.write_text(chart(rows, peer, note), encoding="utf-8")
            log(f"the chart is in {CHART}")


async def show_docker(options: argparse.Namespace, directory: Path) -> None:
    """Measure Docker mode and print its tables."""
    sizes = docker.QUICK if options.quick else docker.Sizes()
    samples, memory = await docker.measure(directory, options.rounds, sizes, random.Random(options.seed), log)
    print("\nIn front of dockerd:")
    for table in docker.tables(samples, memory):
        show_table(table)


async def show_startups(
    options: argparse.Namespace, directory: Path, hooks: dict[str, Path], peers: Sequence[Route]
) -> None:
    """Start pods through a real kubelet and print their table."""
    pods = 1 if options.quick else startups.PODS
    rng = random.Random(options.seed)
    found = await startups.measure(directory, options.rounds, pods, hooks, peers, rng, log)
    print("\nThrough kubelet:")
    show_table(startups.table(found))


def show_table(lines: Iterable[str]) -> None:
    """Print a table."""
    print("", *lines, sep="\n", flush=True)


def log(text: str) -> None:
    """Write a progress message to standard error."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", type=parse_peer, metavar="PEER", help="another proxy")
    parser.add_argument("--rounds", type=int, default=6, help=f"{PUBLISHED} give figures to publish and draw the chart")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--runtime", action="append", choices=RUNTIMES, help="measure only this one; may be repeated")
    parser.add_argument("--directory", type=Path, help="directory to create for all sockets; its path must be short")
    parser.add_argument("--quick", action="store_true", help="few operations per round, to check that the bench works")
    options = parser.parse_args()
    parameters = (
        f"{options.rounds} rounds, seed {options.seed}. Python {platform.python_version()}, uvloop {version('uvloop')}."
    )
    options.machine = machine()
    print(parameters, options.machine, flush=True)
    if options.directory is not None:
        options.directory.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="bench-")
        if options.directory is None
        else nullcontext(options.directory) as d
    ):
        uvloop.run(measure(options, Path(d)))


if __name__ == "__main__":
    main()
