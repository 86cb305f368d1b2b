"""Never two leaders, whatever delays, losses, pauses, crashes, clocks and people do: elections in simulated time."""

import datetime
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from hypothesis import given, settings, target
from hypothesis import strategies as st

from governor.kube.lease.candidate import Candidate, Lease, Moment, Spec, Step, Timing

TIMING = Timing()
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LASTS_S = 120.0
QUIET_S = 60.0
"""After which one leads again, when nothing happens any more."""


class Way(NamedTuple):
    """How one request fares."""

    there_s: float = 0.0
    back_s: float = 0.0
    lost: bool = False


class Fault(NamedTuple):
    """What befalls a machine, or the Lease, at some time."""

    at_s: float
    what: str
    machine: int
    seconds: float


@dataclass
class Request:
    """A look, or with a spec a write that succeeds only on its version."""

    sent: Moment
    version: int
    spec: Spec | None = None
    accepted: bool = False
    answer: Lease | None = None


class Server:
    """An API server with at most one Lease."""

    def __init__(self) -> None:
        self.version = 0
        self.spec: Spec | None = None

    def lease(self) -> Lease | None:
        return None if self.spec is None else Lease(str(self.version), self.spec, {})

    def handle(self, request: Request) -> None:
        request.accepted = request.spec is None or request.version == self.version
        if request.accepted and request.spec is not None:
            self.store(request.spec)
        request.answer = self.lease()

    def store(self, spec: Spec) -> None:
        """What changes nothing makes no new version."""
        if spec != self.spec:
            self.version += 1
            self.spec = spec


class Machine:
    """Clocks, and a candidate that does what ``election`` does."""

    def __init__(self, world: "World", number: int, rate: float) -> None:
        self.world = world
        self.number = number
        self.rate = rate
        self.wall_s = 0.0
        self.wall_stands = False
        self.paused_until_s = 0.0
        self.cut_off_until_s = 0.0
        self.lives = 0
        self.live: Request | None = None
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.live = None
        self.me = Candidate(f"candidate-{self.number}-{self.lives}", TIMING)
        self.later(0.0, self.act)

    def moment(self) -> Moment:
        own_s = self.world.now_s * self.rate
        wall_s = self.wall_s if self.wall_stands else self.wall_s + own_s
        return Moment(self.number * 1000 + own_s, START + datetime.timedelta(seconds=wall_s))

    def later(self, own_s: float, then: Callable[[], None]) -> None:
        """In so many seconds of its own clock, unless it has been started anew; not while it is paused."""
        life = self.lives

        def wake() -> None:
            if self.lives != life:
                return
            if self.world.now_s < self.paused_until_s:
                self.world.at(self.paused_until_s, wake)
            else:
                then()

        self.world.at(self.world.now_s + own_s / self.rate, wake)

    def rest(self) -> None:
        self.live = None
        self.later(TIMING.retry_s, self.act)

    def act(self) -> None:
        match self.me.step(self.moment()):
            case Step.RENEW:
                self.write(self.me.renewal(self.moment()))
            case Step.STEP_DOWN:
                self.me = self.me.lost()
                self.rest()
            case _:
                self.send(Request(self.moment(), 0))

    def write(self, spec: Spec) -> None:
        self.me = self.me.sends(spec)
        version = int(self.me.lease.version) if self.me.lease else 0
        self.send(Request(self.moment(), version, spec))

    def send(self, request: Request) -> None:
        self.live = request
        way = self.world.way()
        if self.world.now_s >= self.cut_off_until_s:
            self.world.at(self.world.now_s + way.there_s, lambda: self.world.server.handle(request))
            if not way.lost:
                self.later((way.there_s + way.back_s) * self.rate, lambda: self.receive(request))
        self.later(TIMING.renew_deadline_s / 2, lambda: self.give_up(request))

    def give_up(self, request: Request) -> None:
        """The server may carry it out all the same, now or later."""
        if self.live is request:
            self.rest()

    def receive(self, request: Request) -> None:
        if self.live is not request:
            return
        if request.spec is not None and request.accepted and request.answer is not None:
            self.wrote(request.answer, request.sent)
        elif request.spec is not None and self.me.term is not None:
            self.send(Request(self.moment(), 0))  # refused: see who leads
        elif request.spec is not None:
            self.rest()
        else:
            self.saw(request.answer)

    def wrote(self, lease: Lease, sent: Moment) -> None:
        begins = self.me.term is None
        self.me = self.me.wrote(lease, sent)
        if begins and self.me.term is not None:
            self.world.epochs.append(self.me.term.epoch)
        self.rest()

    def saw(self, lease: Lease | None) -> None:
        self.me = self.me.saw(lease, self.moment())
        if self.me.step(self.moment()) is Step.TAKE:
            self.write(self.me.claim(self.moment()))
        else:
            self.rest()

    def stop(self) -> None:
        """Give the Lease back and start anew."""
        if self.me.term is not None:
            self.me = self.me.lost()
            self.write(self.me.release(self.moment()))
        self.start()


class World:
    """Three machines, one server, and what happens to them in order of time."""

    def __init__(self, rates: Sequence[float], ways: Sequence[Way]) -> None:
        self.now_s = 0.0
        self.server = Server()
        self.epochs: list[int] = []
        self._ways = itertools.cycle(ways)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.machines = [Machine(self, number, rate) for number, rate in enumerate(rates)]

    def at(self, real_s: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._events, (real_s, next(self._order), then))

    def way(self) -> Way:
        """How the next request fares; in the end all is well."""
        way = next(self._ways)
        return way if self.now_s < LASTS_S else Way()

    @property
    def leaders(self) -> list[Machine]:
        return [each for each in self.machines if each.me.remaining_s(each.moment()) > 0]

    def run(self) -> None:
        while self._events[0][0] <= LASTS_S + QUIET_S:
            self.now_s, _, then = heapq.heappop(self._events)
            then()
            assert len(self.leaders) <= 1, f"two lead at {self.now_s} s"

    def befall(self, fault: Fault) -> None:
        machine = self.machines[fault.machine]
        match fault.what:
            case "crash":
                machine.start()
            case "stop":
                machine.stop()
            case "pause":
                machine.paused_until_s = self.now_s + fault.seconds
            case "cut off":
                machine.cut_off_until_s = self.now_s + fault.seconds
            case "wall clock stands":
                machine.wall_stands = True
            case "wall clock set":
                machine.wall_s += fault.seconds if fault.at_s % 2 else -fault.seconds
            case "labelled":
                self.server.version += self.server.spec is not None
            case _ if self.server.spec is not None:
                holder = "" if fault.what == "emptied" else "nobody"
                self.server.store(msgspec.structs.replace(self.server.spec, holder_identity=holder))


DELAYS = st.just(0.0) | st.floats(min_value=0, max_value=20)
WAYS = st.just(Way()) | st.just(Way()) | st.builds(Way, DELAYS, DELAYS, st.booleans())
FAULTS = st.builds(
    Fault,
    st.floats(min_value=0, max_value=LASTS_S),
    st.sampled_from(
        ["crash", "stop", "pause", "cut off", "wall clock stands", "wall clock set", "labelled", "emptied", "renamed"]
    ),
    st.integers(min_value=0, max_value=2),
    st.sampled_from([5.0, 15.0, 30.0]) | st.floats(min_value=0, max_value=40),
)
RATES = st.sampled_from([0.9, 1.0, 1.34])
"""Apart by less than the duration of a Lease and its renew deadline are: 15 to 10."""


@settings(max_examples=150, deadline=None)
@given(
    rates=st.tuples(RATES, RATES, RATES),
    ways=st.lists(WAYS, min_size=1, max_size=40),
    faults=st.lists(FAULTS, max_size=12),
)
def test_never_do_two_lead_and_in_the_end_one_does(
    rates: tuple[float, float, float], ways: list[Way], faults: list[Fault]
) -> None:
    world = World(rates, ways)
    for fault in faults:
        world.at(fault.at_s, lambda fault=fault: world.befall(fault))  # type: ignore[misc]
    world.run()
    assert len(world.leaders) == 1
    assert world.epochs == sorted(set(world.epochs)), "each term has a higher number than those before"
    target(float(len(world.epochs)))
