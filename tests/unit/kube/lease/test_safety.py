"""Simulated leader elections with delays, losses, pauses, crashes, clock errors and edits: never two leaders."""

import datetime
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from hypothesis import given, target
from hypothesis import strategies as st

from governor.kube.lease.candidate import Candidate, Lease, LeaseSpec, Moment, Step, Timing

TIMING = Timing()
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
FAULTY_S = 120.0
QUIET_S = 60.0
"""Time without faults after which there is a leader again."""


class Delivery(NamedTuple):
    """Delays of one request and its response, and whether the response is lost."""

    request_s: float = 0.0
    response_s: float = 0.0
    lost: bool = False


class Fault(NamedTuple):
    """A fault of a machine or an edit of the Lease at some time."""

    at_s: float
    kind: str
    machine: int
    seconds: float


@dataclass
class Request:
    """A read, or with a spec a write that succeeds only on its version."""

    sent: Moment
    version: int
    spec: LeaseSpec | None = None
    accepted: bool = False
    response: Lease | None = None


class Server:
    """An API server with at most one Lease."""

    def __init__(self) -> None:
        self.version = 0
        self.spec: LeaseSpec | None = None

    def lease(self) -> Lease | None:
        return None if self.spec is None else Lease(str(self.version), self.spec, {})

    def handle(self, request: Request) -> None:
        request.accepted = request.spec is None or request.version == self.version
        if request.accepted and request.spec is not None:
            self.store(request.spec)
        request.response = self.lease()

    def store(self, spec: LeaseSpec) -> None:
        """Store the spec; an unchanged one gets no new version."""
        if spec != self.spec:
            self.version += 1
            self.spec = spec


class Machine:
    """A machine with its own clocks, driving a candidate as ``elector`` does."""

    def __init__(self, world: "World", number: int, rate: float) -> None:
        self.world = world
        self.number = number
        self.rate = rate
        self.wall_s = 0.0
        self.wall_stopped = False
        self.paused_until_s = 0.0
        self.partitioned_until_s = 0.0
        self.starts = 0
        self.pending: Request | None = None
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.pending = None
        self.candidate = Candidate(f"candidate-{self.number}-{self.starts}", TIMING)
        self.call_later(0.0, self.act)

    def moment(self) -> Moment:
        own_s = self.world.now_s * self.rate
        wall_s = self.wall_s if self.wall_stopped else self.wall_s + own_s
        return Moment(self.number * 1000 + own_s, START + datetime.timedelta(seconds=wall_s))

    def call_later(self, own_s: float, call: Callable[[], None]) -> None:
        """Schedule a call in seconds of this machine's clock; a restart cancels it, a pause delays it."""
        start = self.starts

        def wake() -> None:
            if self.starts != start:
                return
            if self.world.now_s < self.paused_until_s:
                self.world.at(self.paused_until_s, wake)
            else:
                call()

        self.world.at(self.world.now_s + own_s / self.rate, wake)

    def retry_later(self) -> None:
        self.pending = None
        self.call_later(TIMING.retry_period_s, self.act)

    def act(self) -> None:
        match self.candidate.next_step(self.moment()):
            case Step.RENEW:
                self.write(self.candidate.renew_spec(self.moment()))
            case Step.STEP_DOWN:
                self.candidate = self.candidate.lost()
                self.retry_later()
            case _:
                self.send(Request(self.moment(), 0))

    def write(self, spec: LeaseSpec) -> None:
        self.candidate = self.candidate.sending(spec)
        version = int(self.candidate.lease.version) if self.candidate.lease else 0
        self.send(Request(self.moment(), version, spec))

    def send(self, request: Request) -> None:
        self.pending = request
        delivery = self.world.next_delivery()
        if self.world.now_s >= self.partitioned_until_s:
            self.world.at(self.world.now_s + delivery.request_s, lambda: self.world.server.handle(request))
            if not delivery.lost:
                self.call_later((delivery.request_s + delivery.response_s) * self.rate, lambda: self.receive(request))
        self.call_later(TIMING.renew_deadline_s / 2, lambda: self.time_out(request))

    def time_out(self, request: Request) -> None:
        """Stop waiting; the server may still process the request."""
        if self.pending is request:
            self.retry_later()

    def receive(self, request: Request) -> None:
        if self.pending is not request:
            return
        if request.spec is not None and request.accepted and request.response is not None:
            self.on_written(request.response, request.sent)
        elif request.spec is not None and self.candidate.term is not None:
            self.send(Request(self.moment(), 0))  # rejected: read the current holder
        elif request.spec is not None:
            self.retry_later()
        else:
            self.on_read(request.response)

    def on_written(self, lease: Lease, sent: Moment) -> None:
        starts_term = self.candidate.term is None
        self.candidate = self.candidate.written(lease, sent)
        if starts_term and self.candidate.term is not None:
            self.world.epochs.append(self.candidate.term.epoch)
        self.retry_later()

    def on_read(self, lease: Lease | None) -> None:
        self.candidate = self.candidate.observed(lease, self.moment())
        if self.candidate.next_step(self.moment()) is Step.ACQUIRE:
            self.write(self.candidate.acquire_spec(self.moment()))
        else:
            self.retry_later()

    def stop(self) -> None:
        """Release the Lease and restart."""
        if self.candidate.term is not None:
            self.candidate = self.candidate.lost()
            self.write(self.candidate.release_spec(self.moment()))
        self.start()


class World:
    """Three machines, one server, and their events in order of time."""

    def __init__(self, rates: Sequence[float], deliveries: Sequence[Delivery]) -> None:
        self.now_s = 0.0
        self.server = Server()
        self.epochs: list[int] = []
        self._deliveries = itertools.cycle(deliveries)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.machines = [Machine(self, number, rate) for number, rate in enumerate(rates)]

    def at(self, real_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (real_s, next(self._order), call))

    def next_delivery(self) -> Delivery:
        """Return the delivery of the next request; without faults in the final period."""
        delivery = next(self._deliveries)
        return delivery if self.now_s < FAULTY_S else Delivery()

    @property
    def leaders(self) -> list[Machine]:
        return [each for each in self.machines if each.candidate.remaining_s(each.moment()) > 0]

    def run(self) -> None:
        while self._events[0][0] <= FAULTY_S + QUIET_S:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
            assert len(self.leaders) <= 1, f"two leaders at {self.now_s} s"

    def inject(self, fault: Fault) -> None:
        machine = self.machines[fault.machine]
        match fault.kind:
            case "crash":
                machine.start()
            case "stop":
                machine.stop()
            case "pause":
                machine.paused_until_s = self.now_s + fault.seconds
            case "partitioned":
                machine.partitioned_until_s = self.now_s + fault.seconds
            case "wall clock stopped":
                machine.wall_stopped = True
            case "wall clock set":
                machine.wall_s += fault.seconds if fault.at_s % 2 else -fault.seconds
            case "labelled":
                self.server.version += self.server.spec is not None
            case _ if self.server.spec is not None:
                holder = "" if fault.kind == "holder removed" else "unknown"
                self.server.store(msgspec.structs.replace(self.server.spec, holder_identity=holder))


DELAYS = st.just(0.0) | st.floats(min_value=0, max_value=20)
DELIVERIES = st.just(Delivery()) | st.just(Delivery()) | st.builds(Delivery, DELAYS, DELAYS, st.booleans())
FAULTS = st.builds(
    Fault,
    st.floats(min_value=0, max_value=FAULTY_S),
    st.sampled_from(
        [
            "crash",
            "stop",
            "pause",
            "partitioned",
            "wall clock stopped",
            "wall clock set",
            "labelled",
            "holder removed",
            "holder replaced",
        ]
    ),
    st.integers(min_value=0, max_value=2),
    st.sampled_from([5.0, 15.0, 30.0]) | st.floats(min_value=0, max_value=40),
)
RATES = st.sampled_from([0.9, 1.0, 1.34])
"""Their ratios stay below that of lease duration and renew deadline, 15 to 10."""


@given(
    rates=st.tuples(RATES, RATES, RATES),
    deliveries=st.lists(DELIVERIES, min_size=1, max_size=40),
    faults=st.lists(FAULTS, max_size=12),
)
def test_there_are_never_two_leaders_and_finally_one(
    rates: tuple[float, float, float], deliveries: list[Delivery], faults: list[Fault]
) -> None:
    world = World(rates, deliveries)
    for fault in faults:
        world.at(fault.at_s, lambda fault=fault: world.inject(fault))  # type: ignore[misc]
    world.run()
    assert len(world.leaders) == 1
    assert world.epochs == sorted(set(world.epochs)), "epochs must increase"
    target(float(len(world.epochs)))
