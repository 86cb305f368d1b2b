"""What a scenario is made of: named steps that make their own requests, tell what they saw, fail on anything else."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from demo.world import World
from governor.domain.conditions import Condition
from governor.wire.rest import RevisionProgress, RuntimeView

ROADS: Final = {"state store": "", "bindings.redis": "/redis-binding", "bindings.http": "/http-binding"}
RUNTIMES: Final = ("runtime-1", "runtime-2")


class NotObservedError(AssertionError):
    """What the step had to show was not there."""


class Step(msgspec.Struct, frozen=True):
    """One step: its name, what it is about to show, and the function that does it and gives the lines it observed."""

    name: str
    title: str
    run: Callable[["Story"], Coroutine[Any, Any, list[str]]]


class Story(msgspec.Struct):
    """The world and what the steps hand on to each other."""

    world: World
    revision: int = 0
    sidecars: dict[str, int] = {}
    seconds: float = 0.0
    protected_requests: int = 0
    return_seconds: float = 0.0


def expect(what: str, seen: object, wanted: object) -> None:
    """Refuse to go on when an observation is not what the step is about."""
    if seen != wanted:
        raise NotObservedError(f"{what}: expected {wanted!r}, observed {seen!r}")


async def show_orders(story: Story, wanted: dict[str, str]) -> list[str]:
    """Ask every runtime by every road."""
    lines = []
    for runtime in story.world.runtimes:
        order = wanted[runtime.name]
        for title, road in ROADS.items():
            expect(f"{runtime.name} by {title}", await story.world.order(runtime, road), order)
        lines.append(f"{runtime.name}: GET /order → {order!r} by {', '.join(ROADS)}")
    return lines


def done(progress: RevisionProgress) -> list[str]:
    """The runtimes that proved a revision."""
    return [item.runtime for item in progress.runtimes if item.done]


def condition(view: RuntimeView, name: str) -> Condition:
    """One condition of a runtime."""
    return next(item for item in view.conditions if item.type == name)
