"""A broken version: reported to a system of tickets, rolled back, and replaced by a corrected one."""

import json
from typing import Final

from demo.prober import Prober
from demo.reconciler import documents
from demo.reconciler.documents import BROKEN, FIRST, FIXED, ORDERS, SECOND, SHOP
from demo.reconciler.scenario import Scenario, Step
from demo.reconciler.world import World
from demo.steps import expect
from governor.reconciler.kinds.module_instance import RollbackCause
from governor.reconciler.kinds.state import State
from governor.reconciler.setup.own_modules import RECONCILER
from governor.reconciler.states.conditions import shortened

_PENDING_TIMEOUT_S: Final = 15
_MISSING_TAG: Final = "2"
_SHOWN: Final = ("event", "module", "version", "type", "actor", "message")


async def break_one(scenario: Scenario) -> list[str]:
    """Let the channel name a version that cannot start; the system of tickets fails at first, too."""
    world = scenario.world
    await world.apply(documents.sink(world.tickets.url, world.authority.certificate.decode()))
    await world.apply(documents.impatient(_PENDING_TIMEOUT_S))
    world.tickets.failures = [503, 500]
    url = await world.address()
    async with Prober(lambda: world.visit(url), every_s=0.25) as prober:
        await world.apply(documents.channel(orders=BROKEN, shop=SECOND))

        async def is_rolled_back() -> bool:
            return (await world.module(ORDERS)).rollback is not None and bool(world.tickets.accepted)

        await world.observed(is_rolled_back, lambda: f"received notifications: {world.tickets.accepted}")
        lines = await world.reaches(State.ERROR, store=FIRST, orders=BROKEN, shop=SECOND)
        await prober.more(4)
    status, ticket = await world.module(ORDERS), world.tickets.accepted[0]
    expect(
        "the ticket's event, module and version", [ticket[each] for each in _SHOWN[:3]], ["escalated", ORDERS, BROKEN]
    )
    expect("requests to the system of tickets", world.tickets.attempts, 3)
    expect("why it was rolled back", status.rollback and status.rollback.cause, RollbackCause.POLICY)
    expect("the version that is applied", status.last_applied and status.last_applied.version, SECOND)
    wrong = [text for _, text in prober.answers if not text.startswith(f"shop {SECOND}: orders {SECOND}, order ")]
    expect("other answers of the web site meanwhile", wrong, [])
    received = ", ".join(f"{each}={shortened(ticket[each], 110)!r}" for each in _SHOWN)
    return [
        f"received after two failures: {received}",
        *lines,
        f"{ORDERS} was rolled back to {SECOND}; requests meanwhile: {len(prober.answers)}, failed: 0",
    ]


async def correct(scenario: Scenario) -> list[str]:
    """Let the channel name a corrected version; the system of tickets receives the end of the failure."""
    world = scenario.world
    await world.apply(documents.channel(orders=FIXED, shop=SECOND))
    lines = await world.reaches(State.READY, store=FIRST, orders=FIXED, shop=SECOND)
    answer = await world.shows(f"{SHOP} {SECOND}: {ORDERS} {FIXED}, order ")
    ticket = await world.tickets.has("resolved", module=ORDERS)
    expect("the failure that is resolved", ticket["failure"], world.tickets.accepted[0]["failure"])
    expect("notifications in all", len(world.tickets.accepted), 2)
    return [*lines, f"the web site answers: {answer}", f"received: resolved, failure {ticket['failure']}"]


async def break_itself(scenario: Scenario) -> list[str]:
    """Give the reconciler an image of its own that does not exist: the old pod leads on, and goes back to itself."""
    world = scenario.world
    (before,) = await world.pods(RECONCILER)
    await _set_tag(world, _MISSING_TAG)

    async def is_rolled_back() -> bool:
        status = await world.module(RECONCILER)
        return status.rollback is not None and status.attempt is None and len(await world.pods(RECONCILER)) == 1

    await world.observed(is_rolled_back, lambda: "the reconciler has not gone back to its image")
    lines = await world.reaches(State.ERROR, store=FIRST, orders=FIXED, shop=SECOND)
    ticket = await world.tickets.has("escalated", module=RECONCILER)
    (after,) = await world.pods(RECONCILER)
    expect("the reconciler's pod", after["metadata"]["uid"], before["metadata"]["uid"])
    await _set_tag(world, None)
    await world.tickets.has("resolved", module=RECONCILER, failure=ticket["failure"])
    lines += [
        f"pod {after['metadata']['name']}, which was never replaced, has rolled itself back; then the edit is undone:"
    ]
    return [*lines, *await world.reaches(State.READY, store=FIRST, orders=FIXED, shop=SECOND)]


async def _set_tag(world: World, tag: str | None) -> None:
    patch = json.dumps({"spec": {"values": {"image": {"tag": tag}}}})
    await world.kubectl("patch", f"installation/{RECONCILER}", "--type=merge", f"--patch={patch}")


FAILURE_PATH: Final = (
    Step("break", "Publish a version that cannot start: a ticket, and back to the last ready version", break_one),
    Step("correct", "Publish a corrected version: the ticket is resolved", correct),
    Step(
        "break-itself", "Give the reconciler itself a version that cannot start: the old one rolls back", break_itself
    ),
)
