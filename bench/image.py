"""Measure the governor's image: its size, and the time to import it, to start a container and to serve.

Each time is that of one container, from the call to its exit or readiness; *nothing* is the base cost of a container,
with a static program that exits at once.

    python -m bench.image [--rounds 20]
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from demo.programs import answers
from deploy.image.assemble import governor_image
from testbed import images
from testbed.cri.containers import PrivateContainerd, volume
from testbed.server import free_ports
from testbed.waiting import until
from toolchain import cache
from toolchain.oci import write_archive
from toolchain.steps import Steps

GOVERNOR = "/opt/venv/bin/governor"


async def measure(directory: Path, rounds: int) -> None:
    """Assemble, import and run the image; print two tables in Markdown."""
    with governor_image(Steps("image", cache.log_of("image"))) as image:
        archive = write_archive(image, directory / "governor.tar")
        show("layer", "MiB", {layer.title: layer.file.stat().st_size / 2**20 for layer in image.layers})
    async with PrivateContainerd(directory / "containerd") as containers:
        busybox = await containers.import_image(images.busybox())
        began = time.monotonic()
        governor = await containers.import_image(archive)
        imported = time.monotonic() - began
        commands = {
            "nothing": (busybox, "/bin/true"),
            "`python3 -c pass`": (governor, "/opt/venv/bin/python3", "-c", "pass"),
            "`governor --version`": (governor, GOVERNOR, "--version"),
            "`helm version`": (governor, "helm", "version"),
        }
        times = {name: await median(rounds, partial(containers.run, *run)) for name, run in commands.items()}
        times["`governor server` until ready, with an empty directory"] = await median(
            rounds, partial(serve, containers, governor, directory)
        )
    print()
    show("container", "ms, median", {"import of the image, once": imported * 1000, **times})


async def median(rounds: int, act: Callable[[], Awaitable[object]]) -> float:
    """Return the median duration in milliseconds; an act may return its own duration in seconds."""
    times = []
    for _ in range(rounds):
        began = time.monotonic()
        measured = await act()
        times.append(measured if isinstance(measured, float) else time.monotonic() - began)
    return statistics.median(times) * 1000


async def serve(containers: PrivateContainerd, image: str, directory: Path) -> float:
    """Return the seconds until a server in a container is ready."""
    api, health = free_ports(2)
    data = volume(directory / f"data-{health}")
    command = (GOVERNOR, "server", f"--listen=127.0.0.1:{api}", f"--health-listen=127.0.0.1:{health}")
    began = time.monotonic()
    async with containers.running(image, *command, mounts={data: "/var/lib/governor"}):
        await until(lambda: answers(f"http://127.0.0.1:{health}/readyz"))
        return time.monotonic() - began


def show(what: str, unit: str, values: dict[str, float]) -> None:
    """Print a table in Markdown."""
    print(f"| {what} | {unit} |\n|---|---|")
    for name, value in values.items():
        print(f"| {name} | {value:.0f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="number of containers of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as directory:
        asyncio.run(measure(Path(directory), options.rounds))


if __name__ == "__main__":
    main()
