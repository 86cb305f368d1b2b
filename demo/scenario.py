"""The scenario of `make demo`: its routes and runtimes, and how its steps read them."""

import asyncio
from contextlib import aclosing
from typing import Final, TypeAlias

from demo import steps
from demo.steps import NotObservedError, expect
from demo.world import World
from governor.client import Client
from governor.domain.conditions import Condition
from governor.wire.rest import RevisionProgress, RuntimeProgress, RuntimeView

ROUTES: Final = {"state store": "", "bindings.redis": "/redis-binding", "bindings.http": "/http-binding"}
RUNTIMES: Final = ("runtime-1", "runtime-2")

Scenario: TypeAlias = steps.Scenario[World]
Step: TypeAlias = steps.Step[World]


async def show_orders(scenario: Scenario, expected: dict[str, str]) -> list[str]:
    """Read the order from every runtime by every route."""
    lines = []
    for runtime in scenario.world.runtimes:
        order = expected[runtime.name]
        for title, route in ROUTES.items():
            expect(f"{runtime.name} through {title}", await scenario.world.order(runtime, route), order)
        lines.append(f"{runtime.name}: GET /order returns {order!r} through {', '.join(ROUTES)}")
    return lines


async def decided(api: Client, revision: int) -> RuntimeProgress:
    """Wait until the one runtime that a revision changes has verified or rejected it."""
    async with asyncio.timeout(120), aclosing(api.progress(revision)) as stream:
        async for progress in stream:
            (only,) = progress.runtimes
            if only.done or only.summary.state in ("Failed", "Unproven"):
                return only
    raise NotObservedError("the progress stream closed before the change was decided")


def done(progress: RevisionProgress) -> list[str]:
    """Return the runtimes that verified a revision."""
    return [item.runtime for item in progress.runtimes if item.done]


def condition(view: RuntimeView, name: str) -> Condition:
    """Return a runtime's condition of a type."""
    return next(item for item in view.conditions if item.type == name)
