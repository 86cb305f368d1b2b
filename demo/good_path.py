"""The good path: central configuration, a change, its proof. Run by ``make demo`` and, step by step, by the tests."""

from typing import Final

from demo import documents
from demo.scenario import ROADS, RUNTIMES, Step, Story, condition, done, expect, show_orders
from governor.domain.conditions import Status
from governor.wire.rest import ChangeRequest, RuntimeView


async def start_stores(story: Story) -> list[str]:
    """Two Redis servers, each with its own password."""
    lines = []
    for number in (1, 2):
        store = await story.world.start_store()
        expect(f"Redis {number} answers PING", await store.redis.ask("PING"), "PONG")
        lines.append(f"Redis {number} answers at {store.redis.address}, its order desk at {store.desk.url}")
    return lines


async def start_server(story: Story) -> list[str]:
    """The governor server with nothing in it."""
    await story.world.start_server()
    expect("revisions of a new server", len(await story.world.api.revisions()), 0)
    return [f"governor server answers at {story.world.server.url}, no revisions yet"]


async def configure(story: Story) -> list[str]:
    """The admin sets the configuration of both runtimes in one change."""
    world = story.world
    own = [documents.orders_of(name, store) for name, store in zip(RUNTIMES, world.stores, strict=True)]
    request = ChangeRequest(
        (*map(documents.runtime, RUNTIMES), documents.orders(), *own), message="first configuration"
    )
    change = await world.api.change(request)
    expect("runtimes with a delivery", [item.runtime for item in change.runtimes], list(RUNTIMES))
    stored = await world.api.document(change.documents[-1].document)
    expect("a password in what the API shows", world.stores[1].redis.password in repr(stored), False)
    story.revision = change.revision or 0
    return [
        f"revision {story.revision}: {len(change.documents)} documents, a delivery for each runtime, passwords read ***"
    ]


async def start_runtimes(story: Story) -> list[str]:
    """Agents join, fetch their delivery, start daprd and prove that it uses it."""
    lines = []
    for name in RUNTIMES:
        await story.world.start_runtime(name)
    progress = await story.world.verified(story.revision)
    expect("verified runtimes", sorted(done(progress)), sorted(RUNTIMES))
    for name in RUNTIMES:
        view = await story.world.api.runtime(name)
        lines.append(f"{name}: {_verified(view)}")
    for runtime in story.world.runtimes:
        story.sidecars[runtime.name] = runtime.sidecar_pid()
    return lines


async def store_orders(story: Story) -> list[str]:
    """An order in each runtime, by each road."""
    lines = []
    for runtime, order in zip(story.world.runtimes, ("foo", "bar"), strict=True):
        for title, road in ROADS.items():
            expect(f"{runtime.name} accepts by {title}", await story.world.new_order(runtime, road, order), order)
        lines.append(f"{runtime.name}: POST /neworder {order!r} accepted by {', '.join(ROADS)}")
    return lines


async def show_own_orders(story: Story) -> list[str]:
    """Both runtimes answer with their own order."""
    return await show_orders(story, {"runtime-1": "foo", "runtime-2": "bar"})


async def repoint(story: Story) -> list[str]:
    """The admin re-points runtime 2 to Redis 1; the agent proves that its sidecar uses it."""
    world = story.world
    story.revision = await world.point("runtime-2", world.stores[0], "runtime 2 keeps its orders in Redis 1")
    progress = await world.verified(story.revision)
    expect("runtimes that the change concerned", done(progress), ["runtime-2"])
    story.seconds = progress.runtimes[0].seconds
    view = await world.api.runtime("runtime-2")
    lines = [f"revision {story.revision} verified on runtime-2 after {story.seconds:.2f} s"]
    seen = dict.fromkeys(
        item.text for item in condition(view, "Verified").evidence if item.source.startswith("sidecar")
    )
    return [*lines, *(f"evidence from the sidecar: {text}" for text in seen)]


async def show_proof(story: Story) -> list[str]:
    """Runtime 2 answers with runtime 1's order, by each road, from the same sidecar process."""
    lines = await show_orders(story, {"runtime-1": "foo", "runtime-2": "foo"})
    pid = story.world.runtimes[1].sidecar_pid()
    expect("the sidecar process of runtime-2", pid, story.sidecars["runtime-2"])
    return [*lines, f"runtime-2: still the same sidecar, process {pid}"]


GOOD_PATH: Final = (
    Step("start-stores", "Two Redis servers with passwords", start_stores),
    Step("start-server", "The governor server", start_server),
    Step("configure", "One change configures both runtimes", configure),
    Step("start-runtimes", "Two runtimes: agent, daprd, order application", start_runtimes),
    Step("store-orders", "Store 'foo' in runtime 1 and 'bar' in runtime 2", store_orders),
    Step("show-orders", "Each runtime answers with its own order", show_own_orders),
    Step("repoint", "Re-point runtime 2 to Redis 1 by one central change", repoint),
    Step("show-proof", "Runtime 2 now answers with runtime 1's order", show_proof),
)


def _verified(view: RuntimeView) -> str:
    expect(f"{view.name} is verified", condition(view, "Verified").status, Status.TRUE)
    return f"verified, {len(view.report.resources) if view.report else 0} resources in use by its sidecar"


def result(story: Story) -> str:
    """The first half of the sentence that sums the demo up, from what the steps observed."""
    return (
        f"Runtime 2 was re-pointed to Redis 1 by one central change and answers 'foo' by {len(ROADS)} roads; "
        f"accepted to verified in use took {story.seconds:.2f} s, without a restart"
    )
