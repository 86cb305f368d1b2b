"""Measure, print tables in Markdown and draw the chart of the documentation; progress goes to standard error.

make bench-kubernetes        (or: python -m bench.kubernetes --only replayed --sidecars 100 --changes 3)

Two parts: hot reloads in a real cluster, beside ``kubectl apply`` alone, which needs root and this machine's one
cluster; and changes with many replayed sidecars.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.kubernetes import reloads, replayed
from bench.kubernetes.chart import chart
from bench.kubernetes.report import failures, headlines, parts, replayed_table
from bench.machine import load, machine
from testbed.builds.dapr import VERSION
from testbed.cluster import host
from toolchain.errors import TestbedError
from toolchain.repository import REPOSITORY

CHART: Final = REPOSITORY / "docs" / "benchmarks-kubernetes.svg"
PUBLISHED: Final = 100
"""Rounds below this number check that the benchmark works, and draw no chart."""


def measure_reloads(directory: Path, rounds: int, where: str) -> None:
    """Measure hot reloads in a real cluster, print the tables and draw the chart."""
    found = asyncio.run(reloads.measure(directory, rounds, log))
    for table in (headlines, parts, failures):
        show(table(found))
    if rounds >= PUBLISHED:
        note = f"{rounds} rounds of make bench-kubernetes, Dapr {VERSION}. {where}"
        CHART.write_text(chart(found, note), encoding="utf-8")
        log(f"the chart is in {CHART}")


def show(table: Iterable[str]) -> None:
    """Print a table."""
    print("", *table, sep="\n", flush=True)


def log(text: str) -> None:
    """Write a progress message to standard error."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Parse the options, measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("reloads", "replayed"), help="measure only this part")
    parser.add_argument("--rounds", type=int, default=PUBLISHED, help="hot reloads by each method in the real cluster")
    parser.add_argument("--sidecars", type=int, default=1000, help="how many sidecars are replayed")
    parser.add_argument("--changes", type=int, default=5, help="changes with replayed sidecars, at most 7")
    options = parser.parse_args()
    where, began_s = machine(), time.monotonic()
    print(where, flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="governor-bench-") as name:
            directory = Path(name)
            if options.only != "replayed":
                host.require_root()
                measure_reloads(directory / "reloads", options.rounds, where)
            if options.only != "reloads":
                replay = replayed.measure(directory / "replayed", options.sidecars, options.changes, log)
                show(replayed_table(asyncio.run(replay)))
    except TestbedError as error:
        log(str(error))
        return 1
    print(f"\nTook {time.monotonic() - began_s:.0f} s, load {load():.1f} at the end.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
