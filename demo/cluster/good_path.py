"""The proof of concept's scenario: installation, both orders, one runtime re-pointed by hot reload."""

from typing import Final

from demo.cluster import documents
from demo.cluster.scenario import RUNTIMES, Scenario, Step, show_orders, store_orders
from demo.scenario import condition, done
from demo.steps import expect
from governor.domain.conditions import Status
from governor.wire.rest import RuntimeView
from testbed.cluster.releases import POD
from testbed.cluster.workloads import sidecar_image


async def start_stores(scenario: Scenario) -> list[str]:
    """Start two Redis servers."""
    await scenario.world.start_stores()
    lines = []
    for store in scenario.world.stores:
        expect(f"{store.name} answers PING", await store.execute("PING"), "PONG")
        lines.append(f"{store.name} at {store.address}")
    return lines


async def install_server(scenario: Scenario) -> list[str]:
    """Install the server from its chart."""
    world = scenario.world
    await world.install_server()
    expect("revisions of a new server", len(await world.api.revisions()), 0)
    return [f"pod {POD} serves {world.url}, no revisions yet"]


async def deploy_applications(scenario: Scenario) -> list[str]:
    """Deploy the applications while Dapr's injector is away: the pods run without a sidecar."""
    await scenario.world.deploy_applications(RUNTIMES)
    lines = []
    for runtime in scenario.world.runtimes:
        pod = await runtime.pod()
        expect(f"the sidecar's image in {pod['metadata']['name']}", sidecar_image(pod), "")
        lines.append(f"{runtime.name}: pod {pod['metadata']['name']} runs without a sidecar")
    return lines


async def configure(scenario: Scenario) -> list[str]:
    """Configure both runtimes in one change."""
    world = scenario.world
    own = [documents.state_store(name, store) for name, store in zip(RUNTIMES, world.stores, strict=True)]
    scenario.revision = await world.change(*map(documents.runtime, RUNTIMES), *own, message="first configuration")
    return [f"revision {scenario.revision}: {len(RUNTIMES)} runtimes, each with a state store of its own"]


async def install_agents(scenario: Scenario) -> list[str]:
    """Install the agents: they join, apply, restart the pods that lack a sidecar, and verify."""
    world = scenario.world
    commands = await world.install_agents()
    expect("verified runtimes", sorted(done(await world.verified(scenario.revision))), list(RUNTIMES))
    lines = [f"{command.splitlines()[0].split('/')[0]}…" for command in commands]
    for runtime in world.runtimes:
        await runtime.app.wait_ready()
        scenario.sidecars[runtime.name] = await runtime.instance()
        image = sidecar_image(await runtime.pod())
        lines.append(f"{runtime.name}: {_verified(await world.api.runtime(runtime.name))}, its new pod has {image}")
    return lines


def _verified(view: RuntimeView) -> str:
    expect(f"{view.name} is verified", condition(view, "Verified").status, Status.TRUE)
    return f"verified, {len(view.report.resources) if view.report else 0} resource in use by its sidecar"


async def store_own_orders(scenario: Scenario) -> list[str]:
    """Store an order through each runtime, and read it back."""
    stored = await store_orders(scenario, "", "foo", "bar")
    return [*stored, *await show_orders(scenario, "", "foo", "bar")]


async def repoint(scenario: Scenario) -> list[str]:
    """Point runtime 2 to Redis 1 centrally; the running sidecar takes it."""
    world = scenario.world
    document = documents.state_store("runtime-2", world.stores[0])
    scenario.revision = await world.change(document, message="runtime 2 stores its orders in Redis 1")
    progress = await world.verified(scenario.revision)
    expect("runtimes affected by the change", done(progress), ["runtime-2"])
    scenario.seconds = progress.runtimes[0].seconds
    view = await world.api.runtime("runtime-2")
    texts = dict.fromkeys(item.text for item in condition(view, "Verified").evidence if item.source.startswith("pod"))
    lines = [f"revision {scenario.revision} verified on runtime-2 after {scenario.seconds:.2f} s"]
    return [*lines, *(f"evidence from the sidecar: {text}" for text in texts)]


async def show_proof(scenario: Scenario) -> list[str]:
    """Read the orders: runtime 2 returns runtime 1's, from the same pod."""
    lines = await show_orders(scenario, "", "foo", "foo")
    for runtime in scenario.world.runtimes:
        expect(f"the pod of {runtime.name}", await runtime.instance(), scenario.sidecars[runtime.name])
    return [*lines, f"both pods are those from before: {', '.join(map(str, scenario.sidecars.values()))}"]


GOOD_PATH: Final = (
    Step("start-stores", "Start two Redis servers with passwords", start_stores),
    Step("install-server", "Install the governor server from its chart", install_server),
    Step("deploy-apps", "Deploy the order application in two namespaces, without sidecars", deploy_applications),
    Step("configure", "Configure both runtimes with one change", configure),
    Step("install-agents", "Install an agent for each runtime, with the printed join command", install_agents),
    Step("store-orders", "Store order 'foo' in runtime 1 and 'bar' in runtime 2", store_own_orders),
    Step("repoint", "Re-point runtime 2 to Redis 1 with one central change", repoint),
    Step("show-proof", "Read the orders: runtime 2 now returns runtime 1's, without a restart", show_proof),
)


def result(scenario: Scenario) -> str:
    """Return this part of the summary, from what the steps observed."""
    return (
        "Runtime 2 was re-pointed to Redis 1 by one central change and returned 'foo', "
        f"verified {scenario.seconds:.2f} s after the change was accepted and without a restart"
    )
