"""The first half of the scenario: central configuration, a change and its proof."""

from typing import Final

from demo import documents
from demo.scenario import ROUTES, RUNTIMES, Scenario, Step, condition, done, show_orders
from demo.steps import expect
from governor.domain.conditions import Status
from governor.wire.rest import ChangeRequest, RuntimeView


async def start_stores(scenario: Scenario) -> list[str]:
    """Start two Redis servers, each with its own password."""
    lines = []
    for number in (1, 2):
        store = await scenario.world.start_store()
        expect(f"Redis {number} answers PING", await store.redis.execute("PING"), "PONG")
        lines.append(f"Redis {number} at {store.redis.address}, its order desk at {store.desk.url}")
    return lines


async def start_server(scenario: Scenario) -> list[str]:
    """Start the governor server with an empty database."""
    await scenario.world.start_server()
    expect("revisions of a new server", len(await scenario.world.api.revisions()), 0)
    return [f"governor server at {scenario.world.server.url}, no revisions yet"]


async def configure(scenario: Scenario) -> list[str]:
    """Configure both runtimes in one change."""
    world = scenario.world
    own = [documents.orders_of(name, store) for name, store in zip(RUNTIMES, world.stores, strict=True)]
    request = ChangeRequest(
        (*map(documents.runtime, RUNTIMES), documents.orders(), *own), message="first configuration"
    )
    change = await world.api.change(request)
    expect("runtimes with a delivery", [item.runtime for item in change.runtimes], list(RUNTIMES))
    stored = await world.api.document(change.documents[-1].document)
    expect("password visible in the API", world.stores[1].redis.password in repr(stored), False)
    scenario.revision = change.revision or 0
    return [
        f"revision {scenario.revision}: {len(change.documents)} documents, one delivery per runtime",
        "the API shows passwords as ***",
    ]


async def start_runtimes(scenario: Scenario) -> list[str]:
    """Start the agents: they join, fetch their delivery, start daprd and verify that it uses the delivery."""
    lines = []
    for name in RUNTIMES:
        await scenario.world.start_runtime(name)
    progress = await scenario.world.verified(scenario.revision)
    expect("verified runtimes", sorted(done(progress)), sorted(RUNTIMES))
    for name in RUNTIMES:
        view = await scenario.world.api.runtime(name)
        lines.append(f"{name}: {_verified(view)}")
    for runtime in scenario.world.runtimes:
        scenario.sidecars[runtime.name] = runtime.sidecar_pid()
    return lines


async def store_orders(scenario: Scenario) -> list[str]:
    """Store an order through each runtime, by every route."""
    lines = []
    for runtime, order in zip(scenario.world.runtimes, ("foo", "bar"), strict=True):
        for title, route in ROUTES.items():
            expect(
                f"{runtime.name} accepts an order through {title}",
                await scenario.world.new_order(runtime, route, order),
                order,
            )
        lines.append(f"{runtime.name}: POST /neworder {order!r} accepted through {', '.join(ROUTES)}")
    return lines


async def show_own_orders(scenario: Scenario) -> list[str]:
    """Read the orders: each runtime returns its own."""
    return await show_orders(scenario, {"runtime-1": "foo", "runtime-2": "bar"})


async def repoint(scenario: Scenario) -> list[str]:
    """Point runtime 2 to Redis 1 centrally; the agent verifies that its sidecar uses it."""
    world = scenario.world
    scenario.revision = await world.point("runtime-2", world.stores[0], "runtime 2 stores its orders in Redis 1")
    progress = await world.verified(scenario.revision)
    expect("runtimes affected by the change", done(progress), ["runtime-2"])
    scenario.seconds = progress.runtimes[0].seconds
    view = await world.api.runtime("runtime-2")
    lines = [f"revision {scenario.revision} verified on runtime-2 after {scenario.seconds:.2f} s"]
    seen = dict.fromkeys(
        item.text for item in condition(view, "Verified").evidence if item.source.startswith("sidecar")
    )
    return [*lines, *(f"evidence from the sidecar: {text}" for text in seen)]


async def show_proof(scenario: Scenario) -> list[str]:
    """Read the orders: runtime 2 returns runtime 1's, by every route, from the same sidecar process."""
    lines = await show_orders(scenario, {"runtime-1": "foo", "runtime-2": "foo"})
    pid = scenario.world.runtimes[1].sidecar_pid()
    expect("the sidecar process of runtime-2", pid, scenario.sidecars["runtime-2"])
    return [*lines, f"runtime-2: same sidecar process as before, {pid}"]


GOOD_PATH: Final = (
    Step("start-stores", "Start two Redis servers with passwords", start_stores),
    Step("start-server", "Start the governor server", start_server),
    Step("configure", "Configure both runtimes with one change", configure),
    Step("start-runtimes", "Start two runtimes: agent, daprd and order application", start_runtimes),
    Step("store-orders", "Store order 'foo' in runtime 1 and 'bar' in runtime 2", store_orders),
    Step("show-orders", "Read the orders: each runtime returns its own", show_own_orders),
    Step("repoint", "Re-point runtime 2 to Redis 1 with one central change", repoint),
    Step("show-proof", "Read the orders: runtime 2 now returns runtime 1's", show_proof),
)


def _verified(view: RuntimeView) -> str:
    expect(f"{view.name} is verified", condition(view, "Verified").status, Status.TRUE)
    return f"verified, {len(view.report.resources) if view.report else 0} resources in use by its sidecar"


def result(scenario: Scenario) -> str:
    """Return the first half of the summary, from what the steps observed."""
    return (
        f"Runtime 2 was re-pointed to Redis 1 by one central change and returns 'foo' on all {len(ROUTES)} routes, "
        f"verified {scenario.seconds:.2f} s after the change was accepted and without a restart"
    )
