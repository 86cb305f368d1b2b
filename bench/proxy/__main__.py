"""Measure, and print tables in Markdown; progress goes to standard error.

make bench-proxy        (or: python -m bench.proxy --quick --runtime fake)

Another proxy is given as NAME[+go|+python|+three][@containerd]=SOCKET,PID: it serves on SOCKET before the runtime whose
socket is printed, with the plugins of a directory that is printed. It is awaited for two minutes, so it may be started
meanwhile, or wait for the runtime; with --directory it is known beforehand where everything will be:

    (until [ -S /tmp/b/fake/fake-runtime.sock ]; do sleep 0.1; done; exec PROXY ...) &
    python -m bench.proxy --directory /tmp/b "PROXY=/tmp/proxy.sock,$!"
"""

import argparse
import platform
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Final

import uvloop

from bench.machine import machine
from bench.proxy.plugins import plugin_directories
from bench.proxy.report import added, aims, memories, processor, ratios, slowest
from bench.proxy.rounds import take
from bench.proxy.routes import RUNTIMES, Route, Runtime, peer
from bench.proxy.stage import Sizes, containerd, fake_runtime, stage
from testbed.cri.containerd import VERSION

TITLES: Final = {"fake": "a runtime that answers at once", "containerd": f"containerd {VERSION}"}
QUICK: Final = Sizes(calls=20, lives=1)
RUNNING: Final = {"fake": fake_runtime, "containerd": containerd}


async def measure(options: argparse.Namespace, directory: Path) -> None:
    """One runtime after the other."""
    async with plugin_directories(directory) as hooks:
        for name, hook_directory in hooks.items():
            say(f"plugins {name or 'none'}: {hook_directory}")
        for runtime in options.runtime or RUNTIMES:
            peers = [each for each in options.peers if each.runtime == runtime]
            await show(runtime, options, directory, hooks, peers)


async def show(
    runtime: Runtime, options: argparse.Namespace, directory: Path, hooks: dict[str, Path], peers: Sequence[Route]
) -> None:
    """All rounds with one runtime, and its tables."""
    sizes = QUICK if options.quick else Sizes()
    chance = random.Random(options.seed)
    async with RUNNING[runtime](directory) as (socket, cgroup):
        say(f"runtime {runtime}: {socket}")
        async with stage(directory / f"with-{runtime}", socket, cgroup, hooks, peers) as ready:
            await ready.see_plugins()
            samples = await take(options.rounds, await ready.acts(runtime, sizes), ready.clients, chance, say)
            memory = ready.memory()
    print(f"\nBefore {TITLES[runtime]}:")
    figures = [table(samples) for table in (added, ratios, slowest, processor)]
    for table in (*figures, memories(memory), aims(samples, memory)):
        print("", *table, sep="\n", flush=True)


def say(text: str) -> None:
    """To whoever waits."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", type=peer, metavar="PEER", help="another proxy")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--runtime", action="append", choices=RUNTIMES, help="only this one")
    parser.add_argument("--directory", type=Path, help="a new one, with a short name, in which all sockets are")
    parser.add_argument("--quick", action="store_true", help="little in a round: to see that it works")
    options = parser.parse_args()
    about = (
        f"{options.rounds} rounds, seed {options.seed}. Python {platform.python_version()}, uvloop {version('uvloop')}."
    )
    print(about, machine(), flush=True)
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
