"""Rounds: every operation on every route, the routes of one operation in direct succession and shuffled."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from bench.proxy.operations import Client, Operation
from bench.proxy.processes import cpu_s
from bench.proxy.routes import Route

WARM_UP_SHARE: Final = 10
"""Warm-up repetitions are one in this many."""
T = TypeVar("T")


class Sample(msgspec.Struct, frozen=True):
    """One operation on one route in one round; CPU time is the proxy's, None on the direct route."""

    median_s: float
    p99_s: float
    cpu_s: float | None = None


Samples: TypeAlias = dict[str, dict[str, list[Sample]]]
"""One per round, by operation name and route name."""


async def run_rounds(
    rounds: int,
    operations: Sequence[Operation[Client]],
    clients: Mapping[Route, Client],
    rng: random.Random,
    log: Callable[[str], None],
) -> Samples:
    """Run all rounds."""
    samples: Samples = {operation.name: {route.name: [] for route in clients} for operation in operations}
    began_s = time.monotonic()
    for number in range(rounds):
        log(f"round {number + 1} of {rounds}{_remaining(number, rounds, time.monotonic() - began_s)}")
        for operation in shuffled(operations, rng):
            for route in shuffled(tuple(clients), rng):
                samples[operation.name][route.name].append(await measure(operation, route, clients[route]))
    return samples


def _remaining(done: int, rounds: int, elapsed_s: float) -> str:
    """Return the expected time of the remaining rounds, which is known after the first."""
    return f" (about {elapsed_s / done * (rounds - done):.0f} s left)" if done else ""


def shuffled(things: Sequence[T], rng: random.Random) -> list[T]:
    """Return a shuffled copy."""
    return rng.sample(things, len(things))


async def measure(operation: Operation[Client], route: Route, client: Client) -> Sample:
    """Measure an operation on one route after a warm-up."""
    async with operation.prepare(client) as repeat:
        await repeat(max(1, operation.count // WARM_UP_SHARE), operation.at_once)
        before = proxy_cpu_s(route)
        latency = await repeat(operation.count, operation.at_once)
        after = proxy_cpu_s(route)
    each_s = None if before is None or after is None else (after - before) / operation.count
    return Sample(latency.median_s, latency.p99_s, each_s)


def proxy_cpu_s(route: Route) -> float | None:
    """Return the proxy's CPU time so far; None on the direct route."""
    return None if route.pid is None else cpu_s(route.pid)
