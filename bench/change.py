"""Benchmark from an accepted change to its verification, by stage, for reloads and restarts.

One runtime with a real daprd is switched repeatedly between two Redis servers. *reload* changes only the component;
*restart* also changes a Resiliency, which only a new process can prove. The rounds are interleaved. All processes share
one machine and one clock. A prober continuously requests which store the application uses.

    make bench-change        (or: python -m bench.change --changes 100)
"""

import argparse
import asyncio
import re
import statistics
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.percentiles import p99
from demo import documents
from demo.prober import Prober
from demo.steps import expect
from demo.world import Store, World
from governor.domain.reports import Evidence
from governor.wire.rest import ChangeRequest
from testbed.recipes import provide

NAME = "runtime-1"
PARTS = ("server", "delivery", "preflight", "write", "dapr", "verification", "total")
PROBE_EVERY_S = 0.005


class Sample(msgspec.Struct, frozen=True):
    """One change, in seconds; ``failed`` counts failed requests, ``gap`` is the time from the first to the last."""

    server: float
    delivery: float
    preflight: float
    write: float
    dapr: float
    verification: float
    total: float
    failed: int
    gap: float


def resiliency(seconds: int) -> dict[str, object]:
    """Return a resource that daprd loads only when it starts."""
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Resiliency",
        "metadata": {"name": "limits"},
        "spec": {
            "policies": {"timeouts": {"short": f"{seconds}s"}},
            "targets": {"components": {"statestore": {"outbound": {"timeout": "short"}}}},
        },
    }


async def server_seconds(world: World) -> float:
    """Return the time that the server has spent on changes."""
    url = f"http://127.0.0.1:{world.server.ports['health']}/metrics"
    async with world.http.get(url) as answer:
        match = re.search(r"^governor_server_change_seconds_sum (\S+)", await answer.text(), re.MULTILINE)
    if match is None:
        raise LookupError("the server does not expose governor_server_change_seconds")
    return float(match[1])


async def change(world: World, prober: Prober, store: Store, order: str, limit: int | None) -> Sample:
    """Point the runtime to a store and measure until the change is verified and visible."""
    profile = documents.orders_of(NAME, store)
    if limit is not None:
        profile["spec"]["resources"].append(resiliency(limit))
    prober.answers.clear()
    began = datetime.now(UTC).timestamp()
    spent = await server_seconds(world)
    accepted = await world.api.change(ChangeRequest((profile,)))
    if accepted.revision is None:
        raise RuntimeError("the change had no effect")
    progress = await world.verified(accepted.revision)
    expect("verified runtimes", [item.runtime for item in progress.runtimes if item.done], [NAME])
    server = await server_seconds(world) - spent
    seen = await prober.first(order, began)
    times = _times(await _evidence(world))
    failures = [when for when, _ in prober.failures(began)]
    return Sample(
        server=server,
        delivery=times["agent"] - accepted.time.timestamp() - server,
        preflight=times["preflight"] - times["agent"],
        write=times["file"] - times["preflight"],
        dapr=seen - times["file"],
        verification=times["sidecar"] - seen,
        total=progress.runtimes[0].seconds,
        failed=len(failures),
        gap=failures[-1] - failures[0] if failures else 0.0,
    )


async def _evidence(world: World) -> tuple[Evidence, ...]:
    report = (await world.api.runtime(NAME)).report
    if report is None:
        raise LookupError("the runtime has no report")
    return next(tuple(item.all_evidence) for item in report.resources if item.resource.name == "statestore")


def _times(evidence: tuple[Evidence, ...]) -> dict[str, float]:
    return {item.source.split()[0]: item.time.timestamp() for item in evidence}


async def measure(directory: Path, changes: int) -> dict[str, list[Sample]]:
    """Measure interleaved rounds of three reloads and one restart."""
    samples: dict[str, list[Sample]] = {"reload": [], "restart": []}
    async with World(directory, provide(["redis", "daprd"])) as world:
        stores = [await world.start_store(), await world.start_store()]
        await world.start_server()
        first = (documents.runtime(NAME), documents.orders(), documents.orders_of(NAME, stores[0]))
        begun = await world.api.change(ChangeRequest(first))
        runtime = await world.start_runtime(NAME)
        await world.verified(begun.revision or 0)
        await world.new_order(runtime, "", "foo")
        await world.verified(await world.point(NAME, stores[1], "to the other store"))
        await world.new_order(runtime, "", "bar")
        async with Prober(lambda: world.order(runtime, ""), PROBE_EVERY_S) as prober:
            for number, (method, limit) in enumerate(_rounds(changes)):
                store, order = (stores[0], "foo") if number % 2 == 0 else (stores[1], "bar")
                samples[method].append(await change(world, prober, store, order, limit))
                print(f"\r{number + 1} changes", end="", flush=True)
    print()
    return samples


def _rounds(changes: int) -> Iterator[tuple[str, int | None]]:
    """Yield the method of each change and the Resiliency's limit, which a reload does not change."""
    limit: int | None = None
    for number in range(changes + changes // 3):
        if number % 4 == 3:
            limit = 5 + number
            yield "restart", limit
        else:
            yield "reload", limit


def show(samples: dict[str, list[Sample]]) -> None:
    """Print a Markdown table in milliseconds."""
    print(f"| method | changes | | {' | '.join(PARTS)} | failed requests | gap |")
    print(f"|---|---|---|{'---|' * (len(PARTS) + 2)}")
    for method, each in samples.items():
        for title, pick in (("median", statistics.median), ("p99", p99)):
            parts = " | ".join(f"{pick([getattr(one, part) for one in each]) * 1000:.1f}" for part in PARTS)
            failed, gap = pick([one.failed for one in each]), pick([one.gap for one in each]) * 1000
            print(f"| {method} | {len(each)} | {title} | {parts} | {failed:.0f} | {gap:.0f} |")


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=60, help="number of changes by reload; by restart a third of it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="governor-bench-") as directory:
        show(asyncio.run(measure(Path(directory), options.changes)))


if __name__ == "__main__":
    main()
