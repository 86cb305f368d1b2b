"""Leader electors on a real API server, in virtual time that advances only when no request is in flight."""

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
from governor.kube.lease import LEASES, LIMITS, LeaderElector, master_status_gauge
from governor.kube.objects import Object
from governor.process.clock import VirtualClock
from governor.process.telemetry.instruments import Registry
from testbed.waiting import until

STEP_S = 0.5
_LOOP_ITERATIONS = 20


class CountingClient(Client):
    """A client that counts its requests and those in flight."""

    __slots__ = ("in_flight", "sent")

    def __init__(self, transport: Transport, access: Access) -> None:
        super().__init__(transport, access, LIMITS)
        self.in_flight = 0
        self.sent = 0

    async def send(self, request: Request) -> bytes:
        """Send and count the request."""
        self.in_flight += 1
        self.sent += 1
        try:
            return await super().send(request)
        finally:
            self.in_flight -= 1


class SkewedClock:
    """The clock of a machine with an offset wall clock that may have been paused."""

    def __init__(self, clock: VirtualClock, offset_s: float) -> None:
        self._clock = clock
        self._offset = datetime.timedelta(seconds=offset_s)
        self.paused_s = 0.0
        """Duration of a pause: only the clock has moved, no task has run yet."""

    def now(self) -> datetime.datetime:
        """Return the wall clock time."""
        return self._clock.now() + self._offset

    def monotonic(self) -> float:
        """Return the monotonic time."""
        return self._clock.monotonic() + self.paused_s

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await self._clock.sleep(seconds)


class ExitedError(Exception):
    """The process has exited."""


def simulated_exit(code: int) -> NoReturn:
    """Raise instead of exiting the process."""
    raise ExitedError(code)


@dataclass
class Contender:
    """A leader elector, its work and its terms."""

    elector: LeaderElector
    client: CountingClient
    clock: SkewedClock
    registry: Registry
    work: Callable[[], Awaitable[None]] | None = None
    terms: list[tuple[int, float, float | None]] = field(default_factory=list)
    """Epoch, start and end of its work."""
    running: "asyncio.Task[None] | None" = None
    stalled: bool = False
    """Whether its requests get no response, so that time advances without them."""

    def start(self) -> None:
        """Start the elector."""
        self.running = asyncio.create_task(self.elector.run(self.lead))

    async def stop(self) -> None:
        """Cancel the elector and wait for it."""
        assert self.running is not None
        self.running.cancel()
        await asyncio.wait({self.running})

    async def lead(self) -> None:
        """Work until cancelled, and record the term."""
        started_s = self.clock.monotonic()
        self.terms.append((self.elector.epoch, started_s, None))
        try:
            await (self.work() if self.work else asyncio.Event().wait())
        finally:
            self.terms[-1] = (self.terms[-1][0], started_s, self.clock.monotonic())

    @property
    def master_status(self) -> float | None:
        """Return the value of its metric."""
        return self.registry.value("leader_election_master_status", {"name": "leader"})


class Election:
    """All contenders for the Lease ``leader`` of one namespace."""

    def __init__(self, transport: Transport, access: Access, namespace: str) -> None:
        self.clock = VirtualClock()
        self.namespace = namespace
        self.contenders: list[Contender] = []
        self._transport = transport
        self._access = access
        self._admin = Client(transport, access)

    def contender(self, access: Access | None = None, *, offset_s: float = 0.0) -> Contender:
        """Return a new contender, not started."""
        registry = Registry()
        client = CountingClient(self._transport, access or self._access)
        clock = SkewedClock(self.clock, offset_s)
        number = len(self.contenders)
        elector = LeaderElector(
            client,
            self.namespace,
            "leader",
            f"candidate-{number}",
            clock=clock,
            status=master_status_gauge(registry),
            rng=random.Random(number),
            exit_process=simulated_exit,
        )
        self.contenders.append(Contender(elector, client, clock, registry))
        return self.contenders[-1]

    @property
    def leaders(self) -> list[Contender]:
        """Return the current leader in a list; fail if there are two."""
        found = [each for each in self.contenders if each.elector.is_leader]
        assert len(found) <= 1, [each.elector.identity for each in found]
        return found

    async def settle(self) -> None:
        """Wait until no request is in flight and none is sent before time advances."""
        await until(self._is_settled)

    async def _is_settled(self) -> bool:
        for _ in range(_LOOP_ITERATIONS):
            if any(each.client.in_flight for each in self.contenders if not each.stalled):
                return False
            await asyncio.sleep(0)
        return True

    async def advance(self, seconds: float, *, settle: bool = True) -> None:
        """Advance time in small steps; without waiting for responses if the server sends none."""
        for _ in range(round(seconds / STEP_S)):
            await self.clock.advance(STEP_S)
            if settle:
                await self.settle()
            assert len(self.leaders) <= 1

    async def wait_for_leader(self, *, within_s: float) -> Contender:
        """Advance time until there is a leader."""
        end_s = self.clock.monotonic() + within_s
        await self.settle()
        while not self.leaders:
            assert self.clock.monotonic() < end_s, f"no leader within {within_s} s"
            await self.advance(STEP_S)
        return self.leaders[0]

    def assert_terms_do_not_overlap(self) -> None:
        """Check that no two contenders worked at the same time."""
        terms = sorted((started, ended or float("inf")) for each in self.contenders for _, started, ended in each.terms)
        assert all(ended <= started for (_, ended), (started, _) in pairwise(terms)), terms

    async def lease(self) -> Object | None:
        """Return the stored spec, or None if there is no Lease."""
        try:
            found = await self._admin.get(LEASES, "leader", self.namespace)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None
        spec: Object = found.get("spec", {})
        return spec

    async def edit(self, **change: Any) -> None:
        """Change the Lease as a user would."""
        await self._admin.patch(LEASES, "leader", self.namespace, change, manager="user")

    async def create(self, spec: Object) -> None:
        """Create the Lease as a user would."""
        metadata = {"name": "leader", "namespace": self.namespace}
        manifest = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
        await self._admin.create(LEASES, manifest, manager="user")

    async def delete(self) -> None:
        """Delete the Lease as a user would."""
        await self._admin.delete(LEASES, "leader", self.namespace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel all running contenders; timeouts of stalled requests pass in virtual time."""
        running = {each.running for each in self.contenders if each.running and not each.running.done()}
        for task in running:
            task.cancel()
        while any(not task.done() for task in running):
            await self.clock.advance(STEP_S)
            await asyncio.wait(running, timeout=0.01)
