"""Measure, print tables in Markdown and draw the chart of the documentation; progress goes to standard error.

make bench-kubernetes        (or: python -m bench.kubernetes --only replayed --sidecars 100 --changes 3)

Three parts: hot reloads in a real cluster, beside ``kubectl apply`` alone, which needs root and this machine's one
cluster; changes with many replayed sidecars; and fail-overs between two replicas of the agent.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.kubernetes import failovers, reloads, replayed
from bench.kubernetes.chart import chart
from bench.kubernetes.report import failover_table, failures, headlines, parts, replayed_table
from bench.machine import load, machine
from testbed.builds.dapr import VERSION
from testbed.cluster import host
from toolchain.errors import TestbedError
from toolchain.repository import REPOSITORY

CHART: Final = REPOSITORY / "docs" / "benchmarks-kubernetes.svg"
PARTS: Final = ("reloads", "replayed", "failovers")
WORKLOADS: Final = 50
"""Of replayed sidecars: the same for few and for many, so that only the number of pods differs."""
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


def measure_replayed(directory: Path, sidecars: int, changes: int) -> None:
    """Measure changes with a tenth of the replayed sidecars and with all, and print the tables."""
    for count in (max(sidecars // 10, 1), sidecars):
        per_workload = max(count // WORKLOADS, 1)
        measured = replayed.measure(directory / f"replayed-{count}", count, per_workload, changes, log)
        show(replayed_table(asyncio.run(measured)))


def show(table: Iterable[str]) -> None:
    """Print a table."""
    print("", *table, sep="\n", flush=True)


def log(text: str) -> None:
    """Write a progress message to standard error."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Parse the options, measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="measure only this part")
    parser.add_argument("--rounds", type=int, default=PUBLISHED, help="hot reloads by each method in the real cluster")
    parser.add_argument("--sidecars", type=int, default=1000, help="how many sidecars are replayed")
    parser.add_argument("--changes", type=int, default=5, help="changes with replayed sidecars, at most 7")
    parser.add_argument("--failovers", type=int, default=3, help="how often the leading agent is killed, and stopped")
    options = parser.parse_args()
    where, began_s = machine(), time.monotonic()
    print(where, flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="governor-bench-") as name:
            directory = Path(name)
            if options.only in (None, "reloads"):
                host.require_root()
                measure_reloads(directory / "reloads", options.rounds, where)
            if options.only in (None, "replayed"):
                measure_replayed(directory, options.sidecars, options.changes)
            if options.only in (None, "failovers"):
                show(failover_table(asyncio.run(failovers.measure(directory / "failovers", options.failovers, log))))
    except TestbedError as error:
        log(str(error))
        return 1
    print(f"\nTook {time.monotonic() - began_s:.0f} s, load {load():.1f} at the end.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
