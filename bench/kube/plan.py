"""What a run measures: its tasks, their sizes, the order of the steps, and how long they are expected to take."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.kube.sample import APPLIED, CACHED, CONFIG_MAPS, MANAGER, WATCHED, config_map, config_map_name
from bench.kube.tasks import LIBRARIES, PROTOBUF, TUNED_CACHES, Operation, Task

CONCURRENCY: Final = 16
LIVE: Final = "watch"
"""The task during which objects change."""
SETTLE_S: Final = 16.0
"""Idle time before measuring clients: aiohttp cleans up its pool every 15 s by default."""
_START_S: Final = 1.0
"""A worker's start and warm-up."""


class Sizes(msgspec.Struct, frozen=True):
    """Number of rounds, and the amount of work in each; a measurement also ends after ``limit_s``, unless it is 0."""

    rounds: int = 3
    requests: int = 500
    live_events: int = 500
    replayed_events: int = 5000
    objects: int = 3000
    clusters: int = 250
    limit_s: float = 1.5


QUICK: Final = Sizes(rounds=1, requests=100, live_events=100, replayed_events=500, objects=500, clusters=20)
LONG: Final = Sizes(5, 1000, live_events=1500, replayed_events=10_000, objects=10_000, clusters=1000, limit_s=0.0)


class Planned(msgspec.Struct, frozen=True):
    """A task and what it is run with."""

    task: Task
    libraries: tuple[str, ...] = LIBRARIES
    expected_s: float = _START_S + Sizes().limit_s
    is_simultaneous: bool = False
    """Whether all libraries run at the same time, because only memory counts."""


class Step(msgspec.Struct, frozen=True):
    """Workers that run at the same time: one, or all of a simultaneous task."""

    round: int
    name: str
    libraries: tuple[str, ...]
    expected_s: float


def plan(sizes: Sizes, real: Path, replayed: Sequence[Path]) -> dict[str, Planned]:
    """Return the tasks by name."""
    one, many, limit_s = (str(real),), tuple(map(str, replayed)), sizes.limit_s
    names = tuple(map(config_map_name, range(CONFIG_MAPS)))
    manifest = config_map(APPLIED, 0, "")

    def requests(operation: Operation, count: int, concurrency: int) -> Task:
        task = Task(operation, one, APPLIED, count, concurrency, limit_s)
        return msgspec.structs.replace(task, names=names, manifest=manifest, manager=MANAGER)

    return {
        "apply": Planned(requests("apply", sizes.requests // 2, 1)),
        "apply-16": Planned(requests("apply", sizes.requests, CONCURRENCY), (*LIBRARIES, PROTOBUF)),
        "get": Planned(requests("get", sizes.requests // 2, 1)),
        "get-16": Planned(requests("get", sizes.requests, CONCURRENCY), (*LIBRARIES, PROTOBUF)),
        LIVE: Planned(Task("watch", one, WATCHED, sizes.live_events, limit_s=limit_s), (*LIBRARIES, PROTOBUF)),
        "replay": Planned(Task("watch", many[:1], WATCHED, sizes.replayed_events, limit_s=limit_s, is_replayed=True)),
        "cache": Planned(
            Task("cache", one, CACHED, sizes.objects, warm_up_namespace=WATCHED),
            (*LIBRARIES, *TUNED_CACHES),
            expected_s=10.0,
            is_simultaneous=True,
        ),
        "connect": Planned(
            Task("connect", many, APPLIED, sizes.clusters, CONCURRENCY, settle_s=SETTLE_S, names=names),
            expected_s=10.0 + SETTLE_S,
            is_simultaneous=True,
        ),
    }


def steps(rounds: int, planned: Mapping[str, Planned]) -> Iterator[Step]:
    """Yield all steps, round by round."""
    for number in range(rounds):
        for name, each in planned.items():
            ordered = rotated(each.libraries, number)
            groups = [ordered] if each.is_simultaneous else [(library,) for library in ordered]
            yield from (Step(number, name, group, each.expected_s) for group in groups)


def rotated(libraries: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the libraries in this round's order, which rotates because the first run may find another server state."""
    first = number % len(libraries)
    return (*libraries[first:], *libraries[:first])


def remaining_s(all_steps: Sequence[Step], done: int, elapsed_s: float) -> float:
    """Return the expected time of the steps that are not done, at the pace of those that are."""
    expected_s = sum(step.expected_s for step in all_steps[:done])
    pace = elapsed_s / expected_s if done else 1.0
    return pace * sum(step.expected_s for step in all_steps[done:])
