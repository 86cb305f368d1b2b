"""Building blocks of the scenario: named steps that send requests, check the answers and return what they observed."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from demo.world import World
from governor.domain.conditions import Condition
from governor.wire.rest import RevisionProgress, RuntimeView

ROUTES: Final = {"state store": "", "bindings.redis": "/redis-binding", "bindings.http": "/http-binding"}
RUNTIMES: Final = ("runtime-1", "runtime-2")


class NotObservedError(AssertionError):
    """A step did not observe what it expects."""


class Step(msgspec.Struct, frozen=True):
    """One step: its name, its title, and a function that runs it and returns the lines to print."""

    name: str
    title: str
    run: Callable[["Scenario"], Coroutine[Any, Any, list[str]]]


class Scenario(msgspec.Struct):
    """The running programs and the values that steps pass on."""

    world: World
    revision: int = 0
    sidecars: dict[str, int] = {}
    seconds: float = 0.0
    protected_requests: int = 0
    rollback_seconds: float = 0.0


def expect(what: str, observed: object, expected: object) -> None:
    """Raise if an observation is not the expected one."""
    if observed != expected:
        raise NotObservedError(f"{what}: expected {expected!r}, observed {observed!r}")


async def show_orders(scenario: Scenario, expected: dict[str, str]) -> list[str]:
    """Read the order from every runtime by every route."""
    lines = []
    for runtime in scenario.world.runtimes:
        order = expected[runtime.name]
        for title, route in ROUTES.items():
            expect(f"{runtime.name} through {title}", await scenario.world.order(runtime, route), order)
        lines.append(f"{runtime.name}: GET /order returns {order!r} through {', '.join(ROUTES)}")
    return lines


def done(progress: RevisionProgress) -> list[str]:
    """Return the runtimes that verified a revision."""
    return [item.runtime for item in progress.runtimes if item.done]


def condition(view: RuntimeView, name: str) -> Condition:
    """Return a runtime's condition of a type."""
    return next(item for item in view.conditions if item.type == name)
