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
STEP_S: Final = 2.5
MEMORY_STEP_S: Final = 60.0
"""How long a step is assumed to take, until the pace of the run is known."""


class Sizes(msgspec.Struct, frozen=True):
    """Number of rounds, and the amount of work in each; a measurement also ends after ``limit_s``, unless it is 0."""

    rounds: int = 3
    requests: int = 5000
    live_events: int = 500
    replayed_events: int = 5000
    objects: int = 5000
    clusters: int = 1000
    limit_s: float = 1.5


QUICK: Final = Sizes(rounds=1, requests=100, live_events=100, replayed_events=500, objects=500, clusters=20)
LONG: Final = Sizes(5, 5000, live_events=1500, replayed_events=10_000, objects=10_000, clusters=1000, limit_s=0.0)


class Planned(msgspec.Struct, frozen=True):
    """A task and what it is run with."""

    task: Task
    libraries: tuple[str, ...] = LIBRARIES
    is_memory: bool = False
    """Whether only memory counts, so that it may run at the same time as others."""


class Step(msgspec.Struct, frozen=True):
    """Workers that run at the same time: one, or all that measure memory."""

    round: int
    title: str
    runs: tuple[tuple[str, str], ...]
    """Tasks by name, and their libraries."""
    expected_s: float

    @property
    def is_live(self) -> bool:
        """Whether objects have to change meanwhile."""
        return any(name == LIVE for name, _ in self.runs)


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
            is_memory=True,
        ),
        "connect": Planned(
            Task("connect", many, APPLIED, sizes.clusters, CONCURRENCY, settle_s=SETTLE_S, names=names),
            is_memory=True,
        ),
    }


def steps(rounds: int, planned: Mapping[str, Planned]) -> Iterator[Step]:
    """Yield all steps, round by round."""
    for number in range(rounds):
        memory: list[tuple[str, str]] = []
        for name, each in planned.items():
            runs = [(name, library) for library in rotated(each.libraries, number)]
            if each.is_memory:
                memory += runs
            else:
                yield from (Step(number, " with ".join(run), (run,), STEP_S) for run in runs)
        yield Step(number, "memory with all libraries at once", tuple(memory), MEMORY_STEP_S)


def rotated(libraries: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the libraries in this round's order, which rotates because the first run may find another server state."""
    first = number % len(libraries)
    return (*libraries[first:], *libraries[:first])


def remaining_s(all_steps: Sequence[Step], done: int, elapsed_s: float) -> float:
    """Return the expected time of the steps that are not done, at the pace of those that are."""
    expected_s = sum(step.expected_s for step in all_steps[:done])
    pace = elapsed_s / expected_s if done else 1.0
    return pace * sum(step.expected_s for step in all_steps[done:])
