"""From an empty cluster to three modules, and their upgrade by one edit of a channel."""

from typing import Final

from demo.reconciler import documents
from demo.reconciler.documents import FIRST, ORDERS, SECOND, SHOP, SPACE, STORE
from demo.reconciler.scenario import Scenario, Step
from demo.steps import expect
from governor.kube.lease import LEASES
from governor.reconciler.kinds.state import State
from governor.reconciler.main import NAME
from governor.reconciler.setup.own_modules import RECONCILER


async def bootstrap(scenario: Scenario) -> list[str]:
    """Install the reconciler with one command; it is a module of itself from then on."""
    world = scenario.world
    await world.import_images()
    printed = await world.bootstrap()
    (pod,) = await world.pods(RECONCILER)
    lease = await world.read(f"{LEASES.plural}/{NAME}")
    holder = str(lease["spec"]["holderIdentity"])
    expect(f"the holder {holder} of the Lease is the pod", holder.startswith(pod["metadata"]["name"]), expected=True)
    return [*printed[-2:], *await world.reaches(State.READY)]


async def install(scenario: Scenario) -> list[str]:
    """Publish all versions and a channel, and enable three modules that depend on each other."""
    world = scenario.world
    packages = await documents.package(world.directory)
    await world.apply(*documents.versions_of(packages), documents.channel())
    await world.apply(*reversed(documents.installations()))
    lines = await world.reaches(State.READY, store=FIRST, orders=FIRST, shop=FIRST)
    applied = [(await world.module(each)).last_applied for each in (STORE, ORDERS, SHOP)]
    times = [each.time if each else "" for each in applied]
    expect("modules in the order in which they were applied", times, sorted(times))
    answer = await world.shows(f"shop {FIRST}: orders {FIRST}, order ")
    return [*lines, f"applied in the order {STORE}, {ORDERS}, {SHOP}", f"the web site answers: {answer}"]


async def upgrade(scenario: Scenario) -> list[str]:
    """Edit the channel: two modules get another version, the third is not touched."""
    world = scenario.world
    before = await world.read(f"deployment/{STORE}", SPACE)
    number = _order(await world.visit())
    await world.apply(documents.channel(orders=SECOND, shop=SECOND))
    lines = await world.reaches(State.READY, store=FIRST, orders=SECOND, shop=SECOND)
    answer = await world.shows(f"shop {SECOND}: orders {SECOND}, order ")
    expect("the store has kept its orders", _order(answer) > number, expected=True)
    after = await world.read(f"deployment/{STORE}", SPACE)
    expect(
        "the generation of the store's Deployment", after["metadata"]["generation"], before["metadata"]["generation"]
    )
    return [*lines, f"the web site answers: {answer}", "the store, which has no other version, was not changed"]


def _order(answer: str) -> int:
    return int(answer.rpartition(" ")[2])


INSTALL_PATH: Final = (
    Step("bootstrap", "Make an empty cluster reconcile itself: governor cluster bootstrap", bootstrap),
    Step("install", "Enable three modules that depend on each other, the last one first", install),
    Step("upgrade", "Upgrade two of them by one edit of their channel", upgrade),
)
