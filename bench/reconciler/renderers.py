"""Compare the linked renderer with one ``helm template`` per release, and print a Markdown table.

make bench-render        (or: python -m bench.reconciler.renderers --rounds=1 --releases=100)
"""

import argparse
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.machine import machine
from bench.reconciler.rendering import AT_ONCE, Sample
from testbed.recipes import provide
from toolchain.repository import REPOSITORY

_PROGRAMS: Final = {"linked": "renderer", "helm": "helm"}
_TITLES: Final = {"linked": "linked renderer", "helm": "one `helm template` each"}


def measure(name: str, program: Path, releases: int) -> Sample:
    """Measure in a new process."""
    argv = [sys.executable, "-m", "bench.reconciler.rendering", name, str(program), str(releases)]
    printed = subprocess.run(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
    return msgspec.json.decode(printed, type=Sample)


def table(samples: Mapping[str, Sequence[Sample]], releases: int) -> Iterator[str]:
    """Yield the lines of the table: medians over the rounds."""
    yield f"| {releases:,} releases | seconds | CPU s | ms of CPU each | MiB of {AT_ONCE} processes |"
    yield "|---|---|---|---|---|"
    for name, each in samples.items():
        seconds, cpu_s, mib = (
            statistics.median(getattr(sample, field) for sample in each) for field in ("seconds", "cpu_s", "memory_mib")
        )
        yield f"| {_TITLES[name]} | {seconds:.1f} | {cpu_s:.1f} | {cpu_s / releases * 1000:.1f} | {mib:.0f} |"


def main() -> int:
    """Run the rounds; in each, both renderers run once, in a random order."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.reconciler.renderers", description="Rendering of many releases."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--releases", type=int, default=1000)
    chosen = parser.parse_args()
    programs = provide(_PROGRAMS.values())
    samples: dict[str, list[Sample]] = {name: [] for name in _PROGRAMS}
    print(machine())
    for number in range(chosen.rounds):
        for name in random.sample(list(_PROGRAMS), len(_PROGRAMS)):
            print(f"round {number + 1} of {chosen.rounds}: {name}", file=sys.stderr)
            samples[name].append(measure(name, programs[_PROGRAMS[name]], chosen.releases))
    print("\n".join(table(samples, chosen.releases)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
