"""Rounds: every act on every route, the routes of an act one right after the other in an order that is drawn anew."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import msgspec

from bench.proxy.acts import Act
from bench.proxy.processes import cpu_s
from bench.proxy.routes import Route
from testbed.cri.client import CriClient

WARM_UP_SHARE: Final = 10
"""One act in so many is done before the clock starts."""
T = TypeVar("T")


class Sample(msgspec.Struct, frozen=True):
    """What one turn saw of one act; a direct one has no proxy whose time is counted."""

    median_s: float
    p99_s: float
    cpu_s: float | None = None


Samples: TypeAlias = dict[str, dict[str, list[Sample]]]
"""By the names of act and route, one for each round."""


async def take(
    rounds: int,
    acts: Sequence[Act],
    clients: Mapping[Route, CriClient],
    chance: random.Random,
    say: Callable[[str], None],
) -> Samples:
    """All rounds."""
    samples: Samples = {act.name: {route.name: [] for route in clients} for act in acts}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for act in shuffled(acts, chance):
            for route in shuffled(tuple(clients), chance):
                samples[act.name][route.name].append(await turn(act, route, clients[route]))
    return samples


def shuffled(things: Sequence[T], chance: random.Random) -> list[T]:
    """In another order."""
    return chance.sample(things, len(things))


async def turn(act: Act, route: Route, client: CriClient) -> Sample:
    """The act on one route, after some that do not count."""
    async with act.ready(client) as repeat:
        await repeat(max(1, act.count // WARM_UP_SHARE), act.at_once)
        begun = used(route)
        times = await repeat(act.count, act.at_once)
        ended = used(route)
    each_s = None if begun is None or ended is None else (ended - begun) / act.count
    return Sample(times.median_s, times.p99_s, each_s)


def used(route: Route) -> float | None:
    """Processor time of the proxy until now."""
    return None if route.pid is None else cpu_s(route.pid)
