"""Candidates for one Lease on a real server, in virtual time that waits for what the server has not answered yet."""

import asyncio
import datetime
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NoReturn, Self

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request, Transport
from governor.kube.config.access import Access
from governor.kube.lease.elector import LEASES, LIMITS, Election, master_status
from governor.kube.objects import Object
from governor.process.clock import VirtualClock
from governor.process.telemetry.instruments import Registry
from testbed.waiting import until

STEP_S = 0.5
_TURNS = 20


class WatchedClient(Client):
    """Knows how many of its requests are on their way."""

    __slots__ = ("in_flight", "sent")

    def __init__(self, transport: Transport, access: Access) -> None:
        super().__init__(transport, access, LIMITS)
        self.in_flight = 0
        self.sent = 0

    async def send(self, request: Request) -> bytes:
        """As the client does."""
        self.in_flight += 1
        self.sent += 1
        try:
            return await super().send(request)
        finally:
            self.in_flight -= 1


class SkewedClock:
    """The clock of a machine whose wall clock is wrong, and which may have been paused."""

    def __init__(self, clock: VirtualClock, wrong_s: float) -> None:
        self._clock = clock
        self._wrong = datetime.timedelta(seconds=wrong_s)
        self.missed_s = 0.0
        """How long it was paused: the machine has not noticed yet, only its clock has moved."""

    def now(self) -> datetime.datetime:
        """The wall clock."""
        return self._clock.now() + self._wrong

    def monotonic(self) -> float:
        """The steady clock."""
        return self._clock.monotonic() + self.missed_s

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await self._clock.sleep(seconds)


class GoneError(Exception):
    """The program has ended."""


def gone(code: int) -> NoReturn:
    """Stands in for the end of the process."""
    raise GoneError(code)


@dataclass
class Contender:
    """A candidate, its work and what became of both."""

    election: Election
    client: WatchedClient
    clock: SkewedClock
    registry: Registry
    work: Callable[[], Awaitable[None]] | None = None
    terms: list[tuple[int, float, float | None]] = field(default_factory=list)
    """Epoch, beginning and end of its work."""
    running: "asyncio.Task[None] | None" = None
    unanswered: bool = False
    """Whether nobody waits for its requests to be answered."""

    def start(self) -> None:
        """Begin to stand for election."""
        self.running = asyncio.create_task(self.election.run(self.lead))

    async def stop(self) -> None:
        """End as a program ends."""
        assert self.running is not None
        self.running.cancel()
        await asyncio.wait({self.running})

    async def lead(self) -> None:
        """Work until cancelled, noting when."""
        began_s = self.clock.monotonic()
        self.terms.append((self.election.epoch, began_s, None))
        try:
            await (self.work() if self.work else asyncio.Event().wait())
        finally:
            self.terms[-1] = (self.terms[-1][0], began_s, self.clock.monotonic())

    @property
    def master_status(self) -> float | None:
        """What its metric says."""
        return self.registry.value("leader_election_master_status", {"name": "leader"})


class Stage:
    """All candidates for the Lease ``leader`` of one namespace."""

    def __init__(self, transport: Transport, access: Access, namespace: str) -> None:
        self.clock = VirtualClock()
        self.namespace = namespace
        self.contenders: list[Contender] = []
        self._transport = transport
        self._access = access
        self._admin = Client(transport, access)

    def contender(self, access: Access | None = None, *, wrong_s: float = 0.0) -> Contender:
        """One more, not started."""
        registry = Registry()
        client = WatchedClient(self._transport, access or self._access)
        clock = SkewedClock(self.clock, wrong_s)
        number = len(self.contenders)
        election = Election(
            client,
            self.namespace,
            "leader",
            f"candidate-{number}",
            clock=clock,
            status=master_status(registry),
            chance=random.Random(number),
            leave=gone,
        )
        self.contenders.append(Contender(election, client, clock, registry))
        return self.contenders[-1]

    @property
    def leaders(self) -> list[Contender]:
        """Those that lead at this moment; never more than one."""
        found = [each for each in self.contenders if each.election.is_leader]
        assert len(found) <= 1, [each.election.identity for each in found]
        return found

    async def settle(self) -> None:
        """Return when all requests that will be answered are, and nobody sends another before time moves on."""
        await until(self._is_settled)

    async def _is_settled(self) -> bool:
        for _ in range(_TURNS):
            if any(each.client.in_flight for each in self.contenders if not each.unanswered):
                return False
            await asyncio.sleep(0)
        return True

    async def pass_time(self, seconds: float, *, answered: bool = True) -> None:
        """Let time pass, little by little, for all; without waiting for answers if the server gives none."""
        for _ in range(round(seconds / STEP_S)):
            await self.clock.advance(STEP_S)
            if answered:
                await self.settle()
            assert len(self.leaders) <= 1

    async def until_led(self, *, within_s: float) -> Contender:
        """Let time pass until somebody leads."""
        end_s = self.clock.monotonic() + within_s
        await self.settle()
        while not self.leaders:
            assert self.clock.monotonic() < end_s, f"nobody leads within {within_s} s"
            await self.pass_time(STEP_S)
        return self.leaders[0]

    def assert_no_two_worked_at_once(self) -> None:
        """The times of all work, one after the other."""
        terms = sorted((began, ended or float("inf")) for each in self.contenders for _, began, ended in each.terms)
        assert all(ended <= begins for (_, ended), (begins, _) in pairwise(terms)), terms

    async def lease(self) -> Object | None:
        """The spec as stored; nothing if there is no Lease."""
        try:
            found = await self._admin.get(LEASES, "leader", self.namespace)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None
        spec: Object = found.get("spec", {})
        return spec

    async def edit(self, **change: Any) -> None:
        """Change the Lease by hand."""
        await self._admin.patch(LEASES, "leader", self.namespace, change, manager="person")

    async def put(self, spec: Object) -> None:
        """Create the Lease by hand."""
        metadata = {"name": "leader", "namespace": self.namespace}
        manifest = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
        await self._admin.create(LEASES, manifest, manager="person")

    async def delete(self) -> None:
        """Delete the Lease by hand."""
        await self._admin.delete(LEASES, "leader", self.namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all that still run; whoever waits for an answer that does not come waits in virtual time."""
        running = {each.running for each in self.contenders if each.running and not each.running.done()}
        for task in running:
            task.cancel()
        while any(not task.done() for task in running):
            await self.clock.advance(STEP_S)
            await asyncio.wait(running, timeout=0.01)
