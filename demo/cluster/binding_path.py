"""The first proposal's scenario: the same with an output binding in place of the state store."""

from typing import Final

from demo.cluster import documents
from demo.cluster.scenario import RUNTIMES, Scenario, Step, show_orders, store_orders
from demo.scenario import done
from demo.steps import expect

_ROUTE: Final = "/redis-binding"


async def configure(scenario: Scenario) -> list[str]:
    """Add an output binding to each runtime in one change."""
    world = scenario.world
    own = [documents.binding(name, store) for name, store in zip(RUNTIMES, world.stores, strict=True)]
    revision = await world.change(*own, message="an output binding for each runtime")
    progress = await world.verified(revision)
    expect("verified runtimes", sorted(done(progress)), list(RUNTIMES))
    return [f"{each.runtime}: verified after {each.seconds:.1f} s" for each in progress.runtimes]


async def repoint(scenario: Scenario) -> list[str]:
    """Store orders through the bindings, re-point runtime 2, and read back."""
    world, runtime = scenario.world, scenario.world.runtimes[1]
    lines = await store_orders(scenario, _ROUTE, "foo", "bar")
    lines += await show_orders(scenario, _ROUTE, "foo", "bar")
    before = await runtime.instance()
    document = documents.binding(runtime.name, world.stores[0])
    progress = await world.verified(await world.change(document, message="the binding of runtime 2 uses Redis 1"))
    expect("runtimes affected by the change", done(progress), [runtime.name])
    expect(f"the pod of {runtime.name}", await runtime.instance(), before)
    lines.append(f"re-pointed runtime-2's binding to Redis 1, verified after {progress.runtimes[0].seconds:.2f} s")
    return lines + await show_orders(scenario, _ROUTE, "foo", "foo")


BINDING_PATH: Final = (
    Step("add-bindings", "Add an output binding to both runtimes with one change", configure),
    Step("repoint-binding", "Store both orders through it, re-point runtime 2, and read back", repoint),
)
