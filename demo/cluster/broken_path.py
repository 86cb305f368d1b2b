"""A change that would take an application down, stopped before a sidecar of an application sees it."""

from contextlib import AsyncExitStack
from typing import Final

from demo.broken_path import PROBE_EVERY_S, REQUESTS_AFTER, expect_no_failure
from demo.cluster import documents
from demo.cluster.scenario import Scenario, Step, show_orders
from demo.cluster.world import Runtime
from demo.order_app import STATE_STORE
from demo.prober import Prober
from demo.scenario import decided
from demo.steps import expect

DEAD: Final = "127.0.0.1:1"


async def reject_by_preflight(scenario: Scenario) -> list[str]:
    """Point runtime 2 to a store that does not answer: preflight rejects it, and no request fails."""
    world, runtimes = scenario.world, scenario.world.runtimes
    before = [(await each.instance(), await each.version_of(STATE_STORE)) for each in runtimes]
    async with AsyncExitStack() as stack:
        probers = [await stack.enter_async_context(_prober(scenario, each)) for each in runtimes]
        document = documents.with_host(documents.state_store("runtime-2", world.stores[0]), DEAD)
        revision = await world.change(document, message="runtime 2 stores its orders at a dead address")
        outcome = await decided(world.api, revision)
        for prober in probers:
            await prober.more(REQUESTS_AFTER)
    expect("the state of runtime-2", outcome.summary.state, "Failed")
    for runtime, prober in zip(runtimes, probers, strict=True):
        expect_no_failure(runtime.name, prober)
        scenario.protected_requests += len(prober.answers)
    after = [(await each.instance(), await each.version_of(STATE_STORE)) for each in runtimes]
    expect("the pods, and the versions of their Component", after, before)
    counts = ", ".join(f"{each.name} {len(one.answers)}" for each, one in zip(runtimes, probers, strict=True))
    return [
        f"runtime-2 rejected the change: {outcome.summary.message}",
        f"requests meanwhile: {counts}; failed: 0; no Component was written, and no pod replaced",
        *await show_orders(scenario, "", "foo", "foo"),
    ]


BROKEN_PATH: Final = (
    Step("broken-change", "Apply a broken change: preflight rejects it, no request fails", reject_by_preflight),
)


def result(scenario: Scenario) -> str:
    """Return this part of the summary."""
    return f"a broken change failed none of {scenario.protected_requests} requests"


def _prober(scenario: Scenario, runtime: Runtime) -> Prober:
    return Prober(lambda: scenario.world.order(runtime), PROBE_EVERY_S)
