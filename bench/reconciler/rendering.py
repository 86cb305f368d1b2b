"""One measurement, in a process of its own: render many releases of one chart, and count everything that it took.

python -m bench.reconciler.rendering linked|helm PROGRAM COUNT
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from governor.reconciler.render.helm_cli import HelmRenderer, arguments
from governor.reconciler.render.pool import RenderPool
from governor.reconciler.render.request import Layer, Renderer, Request
from governor.values.secret import Secret
from toolchain.repository import REPOSITORY

AT_ONCE: Final = 2
OBJECTS: Final = 7
CHART: Final = REPOSITORY / "tests" / "data" / "charts" / "small"
_PEAK: Final = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], {"HOME": "/nonexistent"},
                     file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
print(os.wait4(pid, 0)[2].ru_maxrss)
"""


class Sample(msgspec.Struct, frozen=True):
    """What it took to render all releases."""

    seconds: float
    cpu_s: float
    """Of this process and of all that it started."""
    memory_mib: float
    """Peak of the renderers' processes, those that ran at the same time added up."""


def request(number: int) -> Request:
    """Return the request for one of the releases; no two are equal."""
    values = {"replicas": number % 3, "message": f"release {number}", "labels": {"number": str(number)}}
    return Request(CHART, "sha256:small", f"release-{number}", "bench", (Layer(Secret(json.dumps(values))),))


async def render_all(renderer: Renderer, count: int) -> None:
    """Render as many releases, some at once."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            rendered = await renderer.render(request(number))
            assert len(rendered.objects) == OBJECTS

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


@asynccontextmanager
async def linked(program: str) -> AsyncIterator[tuple[Renderer, Callable[[], float]]]:
    """Provide the pool of linked renderers, and a function that returns their peak memory in MiB."""
    async with RenderPool(program, size=AT_ONCE) as pool:
        yield pool, lambda: sum(map(_peak_mib, pool.pids))


@asynccontextmanager
async def helm(program: str) -> AsyncIterator[tuple[Renderer, Callable[[], float]]]:
    """Provide Helm's command, and a function that returns the peak memory of as many as run at once, in MiB."""
    argv = [sys.executable, "-S", "-c", _PEAK, program, *arguments(request(0), [])]
    ended = await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=True)
    peak = int(ended.stdout) / 1024
    yield HelmRenderer(program), lambda: AT_ONCE * peak


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def cpu_s() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usages)


async def measure(name: str, program: str, count: int) -> Sample:
    """Measure a renderer, its start included."""
    before = cpu_s()
    async with {"linked": linked, "helm": helm}[name](program) as (renderer, memory_mib):
        began = time.monotonic()
        await render_all(renderer, count)
        seconds = time.monotonic() - began
        peak = memory_mib()
    return Sample(seconds, cpu_s() - before, peak)


if __name__ == "__main__":
    os.environ.pop("KUBECONFIG", None)
    found = asyncio.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    print(msgspec.json.encode(found).decode())
