"""The scenario of `make demo-kubernetes`: its runtimes, and how its steps read them."""

from typing import Final, TypeAlias

from demo import steps
from demo.cluster.world import World
from demo.steps import expect

RUNTIMES: Final = ("runtime-1", "runtime-2")

Scenario: TypeAlias = steps.Scenario[World]
Step: TypeAlias = steps.Step[World]


async def show_orders(scenario: Scenario, route: str, *orders: str) -> list[str]:
    """Read the order of each runtime's application."""
    lines = []
    for runtime, order in zip(scenario.world.runtimes, orders, strict=True):
        expect(f"{runtime.name}: GET {route}/order", await scenario.world.shown_order(runtime, route), order)
        lines.append(f"{runtime.name}: GET {route}/order returns {order!r}")
    return lines


async def store_orders(scenario: Scenario, route: str, *orders: str) -> list[str]:
    """Store an order through each runtime's application."""
    lines = []
    for runtime, order in zip(scenario.world.runtimes, orders, strict=True):
        stored = await scenario.world.new_order(runtime, order, route)
        expect(f"{runtime.name}: POST {route}/neworder", stored, order)
        lines.append(f"{runtime.name}: POST {route}/neworder {order!r} accepted")
    return lines
