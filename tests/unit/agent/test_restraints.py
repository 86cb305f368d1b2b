"""Windows and holds in the agent's loop: what a platform is asked for, what is reported, and when it is tried again."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from governor.agent import inbox as agent_inbox
from governor.agent.ledger import DeliveryPhase, Ledger
from governor.agent.loop import KEY, Loop
from governor.agent.outbox import Outbox
from governor.agent.platform import Progress, Superseded
from governor.agent.restraints import Restraints, recheck_s, verification_only
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.findings import DriftFindings, Findings, uniform, waiting
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, Drift, ResourceRef
from governor.domain.reports import Cause, Evidence, Report, State, WorkloadRef, acknowledged, overall
from governor.domain.windows import HELD, WAITING_FOR_WINDOW, Hold, Restraint, Window
from governor.process.clock import VirtualClock
from governor.process.reconcile.reconciler import Done, Outcome, Requeue, Stalled, Waiting
from governor.wire.deliveries import SignedDelivery

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE = ResourceRef("Component", "shop", "one")
ORDERS = WorkloadRef("shop", "Deployment", "orders")
NIGHT = (Window("22:00", 60),)
HOLD = Hold(NOON + timedelta(hours=2), "inventory")
SIGNED = SignedDelivery("{}", "key", "signature")


def delivery(sequence: int, content: str, **fields: Any) -> Delivery:
    given = Delivery("r1", sequence, 1, 1, f"sha256:{content}", (), (), ApplyPolicy())
    return msgspec.structs.replace(given, **fields)


class Platform:
    """A platform on which every new content needs a restart; ``states`` are those of contents once applied."""

    def __init__(self, clock: VirtualClock) -> None:
        self.workloads: Mapping[WorkloadRef, int] = {ORDERS: 1}
        self.applied = ""
        self.writes: list[str] = []
        self.states: dict[str, State] = {}
        self.own_hold: Hold | None = None
        self.drift: DriftFindings | None = None
        self.postponed: Restraint | None = None
        self.results: dict[str, Findings] = {}
        self.during: Callable[[Superseded], None] | None = None
        self._clock = clock

    def refs(self, _delivery: Delivery) -> tuple[ResourceRef, ...]:
        return (ONE,)

    def hold(self) -> Hold | None:
        return self.own_hold

    def start(self) -> None:
        return

    async def converge(
        self, given: Delivery, received: Evidence, progress: Progress, superseded: Superseded
    ) -> Findings:
        if self.during is not None:
            self.during(superseded)
        if given.digest in self.results:
            return self.results[given.digest]
        now = self._clock.now()
        restraint = given.restart_restraint(now)
        if given.digest != self.applied:
            if restraint is not None:
                return waiting(restraint, [ONE], self.workloads, now, received)
            self.applied = given.digest
            self.writes.append(given.digest)
            progress(uniform(State.APPLIED, [ONE], self.workloads, received))
        state = self.states.get(given.digest, State.VERIFIED)
        found = uniform(State.APPLIED if self.postponed else state, [ONE], self.workloads, received)
        return msgspec.structs.replace(found, applied=True, restraint=self.postponed)

    async def find_drift(self, given: Delivery, *, after_failure: bool = False) -> DriftFindings | None:
        return self.drift if given.digest == self.applied else None

    async def release(self) -> None:
        """Do nothing: nothing is kept of the delivery before."""

    async def run(self) -> None:
        await asyncio.Event().wait()


class Inbox:
    """An inbox with one delivery."""

    unstored = None
    received_at = NOON
    signed = SIGNED
    newest: Delivery


class Bed:
    """A loop with a real ledger and outbox."""

    def __init__(self, directory: Path) -> None:
        self.clock = VirtualClock(NOON)
        self.platform = Platform(self.clock)
        self.outbox = Outbox(self.clock)
        self.ledger = Ledger(AgentState(FileBlobs(directory)))
        self.inbox = Inbox()
        self._loop = Loop(cast("agent_inbox.Inbox", self.inbox), self.outbox, self.platform, self.ledger, self.clock)

    async def run(self, given: Delivery | None = None) -> Outcome:
        """Deliver, if anything, and reconcile once."""
        if given is not None:
            self.inbox.newest = given
        return await self._loop.reconcile(KEY)

    async def settle(self, given: Delivery) -> None:
        """Apply a delivery until its trial is over."""
        await self.run(given)
        await self.clock.advance(given.apply.verify_window_seconds)
        assert (await self.run(), self.ledger.phase(given)) == (Done(), DeliveryPhase.SETTLED)

    @property
    def report(self) -> Report:
        """The newest report."""
        assert self.outbox.newest is not None
        return self.outbox.newest


@pytest.fixture
async def bed(tmp_path: Path) -> Bed:
    """A loop whose first delivery, "a", is settled."""
    made = Bed(tmp_path)
    await made.settle(delivery(1, "a"))
    return made


def reason_of(report: Report) -> str:
    return report.restraint.reason if report.restraint else ""


# -- waiting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("restraints", "reason", "until"),
    [
        ({"windows": NIGHT}, WAITING_FOR_WINDOW, NOON + timedelta(hours=10)),
        ({"hold": HOLD}, HELD, HOLD.until),
        ({"hold": HOLD, "windows": NIGHT}, HELD, HOLD.until),
    ],
)
async def test_what_waits_is_reported_once_and_looked_at_again(
    bed: Bed, restraints: dict[str, Any], reason: str, until: datetime
) -> None:
    outcome = await bed.run(delivery(2, "b", **restraints))
    assert isinstance(outcome, Waiting)
    assert outcome.recheck_s == 300
    assert (overall(bed.report), acknowledged(bed.report), reason_of(bed.report)) == (State.RECEIVED, False, reason)
    assert bed.report.restraint is not None
    assert (bed.report.restraint.until, bed.report.restraint.waits) == (until, True)
    number = bed.report.n
    await bed.run()
    assert (bed.report.n, bed.platform.writes) == (number, ["sha256:a"])


async def test_the_change_is_applied_when_the_window_opens_and_its_trial_begins_then(bed: Bed) -> None:
    change = delivery(2, "b", windows=NIGHT)
    await bed.run(change)
    await bed.clock.advance(timedelta(hours=10).total_seconds())
    outcome = await bed.run()
    assert outcome == Requeue(change.apply.verify_window_seconds)
    assert (overall(bed.report), reason_of(bed.report), bed.platform.writes[-1]) == (State.VERIFIED, "", "sha256:b")
    assert bed.ledger.phase(change) is DeliveryPhase.ON_TRIAL


async def test_a_change_in_a_window_waits_again_after_it(bed: Bed) -> None:
    await bed.run(delivery(2, "b", windows=NIGHT))
    await bed.clock.advance(timedelta(hours=11).total_seconds())
    assert isinstance(await bed.run(), Waiting)
    assert bed.report.restraint is not None
    assert bed.report.restraint.until == NOON + timedelta(hours=34)


async def test_the_last_seconds_are_awaited_exactly(bed: Bed) -> None:
    await bed.run(delivery(2, "b", hold=HOLD))
    left_s = (HOLD.until - bed.clock.now()).total_seconds()
    await bed.clock.advance(left_s - 7)
    assert await bed.run() == Waiting("held until 2026-01-01 14:00:00Z: inventory", 7)
    await bed.clock.advance(7)
    assert isinstance(await bed.run(), Requeue)
    assert overall(bed.report) is State.VERIFIED


async def test_of_the_hold_of_the_runtime_and_that_of_the_platform_the_longer_one_counts(bed: Bed) -> None:
    bed.platform.own_hold = Hold(HOLD.until + timedelta(hours=1), "by an annotation")
    await bed.run(delivery(2, "b", hold=HOLD))
    assert bed.report.restraint is not None
    assert bed.report.restraint.message == "held until 2026-01-01 15:00:00Z: by an annotation"
    await bed.clock.advance(timedelta(hours=2).total_seconds())
    assert isinstance(await bed.run(), Waiting)
    bed.platform.own_hold = None
    await bed.run()
    assert overall(bed.report) is State.VERIFIED


async def test_a_hold_that_is_set_while_a_change_is_applied_interrupts_it(bed: Bed) -> None:
    """What is applied stays; nothing more is done until the hold ends."""
    interrupted: list[bool] = []

    def set_hold(superseded: Superseded) -> None:
        interrupted.append(superseded())
        bed.platform.own_hold = HOLD
        interrupted.append(superseded())

    bed.platform.during = set_hold
    assert await bed.run(delivery(2, "b")) == Requeue(0.0)
    assert interrupted == [False, True]
    bed.platform.during = None
    await bed.run()
    assert (acknowledged(bed.report), reason_of(bed.report)) == (True, HELD)


# -- meanwhile -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.FAILED, State.UNPROVEN])
async def test_what_stalls_of_the_content_in_use_is_reported_and_not_rolled_back(bed: Bed, state: State) -> None:
    bed.platform.states["sha256:a"] = state
    change = delivery(2, "b", windows=NIGHT)
    assert isinstance(await bed.run(change), Waiting)
    assert (overall(bed.report), reason_of(bed.report)) == (state, WAITING_FOR_WINDOW)
    assert {each.cause for each in bed.report.findings} == {Cause.RUNTIME}
    assert bed.ledger.phase(change) is DeliveryPhase.ON_TRIAL
    bed.platform.states.clear()
    await bed.run()
    assert overall(bed.report) is State.RECEIVED


async def test_drift_of_the_content_in_use_is_reported_while_a_change_waits(bed: Bed) -> None:
    bed.platform.drift = DriftFindings({ONE: "differs"}, (ORDERS,), "file")
    await bed.run(delivery(2, "b", hold=HOLD))
    (found,) = bed.report.resources
    assert (found.state, found.cause, found.evidence[-1].text) == (
        State.FAILED,
        Cause.RUNTIME,
        "differs; not repaired yet",
    )
    assert bed.platform.writes == ["sha256:a"]


async def test_a_held_runtime_without_a_newer_content_stays_verified(bed: Bed) -> None:
    assert await bed.run(delivery(2, "a", hold=HOLD)) == Done()
    assert acknowledged(bed.report)
    assert bed.report.restraint is not None
    assert (reason_of(bed.report), bed.report.restraint.waits) == (HELD, False)
    await bed.run(delivery(3, "a"))
    assert (acknowledged(bed.report), reason_of(bed.report)) == (True, "")


async def test_drift_is_not_repaired_while_held(bed: Bed) -> None:
    bed.platform.drift = DriftFindings({ONE: "differs"}, (ORDERS,), "file")
    outcome = await bed.run(delivery(2, "a", hold=HOLD))
    assert isinstance(outcome, Waiting)
    (found,) = bed.report.resources
    assert found.evidence[-1].text == "differs; not repaired: held until 2026-01-01 14:00:00Z: inventory"


async def test_what_is_in_use_and_was_never_verified_is_not_replaced_by_an_older_content(bed: Bed) -> None:
    bed.platform.states["sha256:b"] = State.UNPROVEN
    await bed.run(delivery(2, "b"))
    await bed.run(delivery(3, "c", windows=NIGHT))
    assert bed.platform.writes == ["sha256:a", "sha256:b"]
    assert reason_of(bed.report) == WAITING_FOR_WINDOW


# -- a part that waits, and failures -------------------------------------------------------------------------------

WINDOW = Restraint(WAITING_FOR_WINDOW, "outside of the maintenance window (next: x)", NOON + timedelta(hours=10))


async def test_the_trial_of_a_change_begins_again_when_its_last_part_is_applied(bed: Bed) -> None:
    change = delivery(2, "b")
    bed.platform.postponed = WINDOW
    assert isinstance(await bed.run(change), Waiting)
    assert (overall(bed.report), reason_of(bed.report)) == (State.APPLIED, WAITING_FOR_WINDOW)
    await bed.clock.advance(timedelta(hours=10).total_seconds())
    bed.platform.postponed = None
    assert await bed.run() == Requeue(change.apply.verify_window_seconds)
    assert bed.ledger.phase(change) is DeliveryPhase.ON_TRIAL


@pytest.mark.parametrize("restraints", [{"windows": NIGHT}, {"hold": HOLD}])
async def test_a_change_that_fails_on_trial_is_rolled_back_at_once(bed: Bed, restraints: dict[str, Any]) -> None:
    await bed.run(delivery(2, "b"))
    bed.platform.states["sha256:b"] = State.FAILED
    outcome = await bed.run(delivery(3, "b", **restraints))
    assert isinstance(outcome, Stalled)
    assert bed.platform.writes == ["sha256:a", "sha256:b", "sha256:a"]
    assert bed.report.workloads[0].evidence[-1].text.endswith("of delivery 1; verified")


async def test_after_a_rollback_the_restraints_count_again(bed: Bed) -> None:
    await bed.run(delivery(2, "b"))
    bed.platform.states["sha256:b"] = State.FAILED
    await bed.run(delivery(3, "b", hold=HOLD))
    bed.platform.drift = DriftFindings({ONE: "differs"}, (ORDERS,), "file")
    assert isinstance(await bed.run(), Waiting)
    bed.platform.drift, bed.platform.applied = None, "sha256:of another program"
    await bed.run()
    assert bed.platform.writes == ["sha256:a", "sha256:b", "sha256:a"]


async def test_a_failure_of_the_part_that_is_applied_is_rolled_back_although_the_rest_waits(bed: Bed) -> None:
    failed = uniform(State.FAILED, [ONE], {ORDERS: 1})
    bed.platform.results["sha256:b"] = msgspec.structs.replace(failed, applied=True, restraint=WINDOW)
    assert isinstance(await bed.run(delivery(2, "b")), Stalled)
    assert bed.ledger.phase(delivery(2, "b")) is DeliveryPhase.QUARANTINED


# -- pure ----------------------------------------------------------------------------------------------------------


def test_the_restraints_of_the_newest_delivery_count_for_every_other() -> None:
    old = delivery(1, "a", windows=(Window("01:00", 5),), hold=Hold(NOON, "old"))
    assert Restraints(NIGHT, None, HOLD).on(old) == delivery(1, "a", windows=NIGHT, hold=HOLD)
    assert Restraints(NIGHT).on(old) == delivery(1, "a", windows=NIGHT)


@pytest.mark.parametrize(
    ("policy", "expected"), [(Drift.OFF, Drift.OFF), (Drift.WARN, Drift.WARN), (Drift.ENFORCE, Drift.WARN)]
)
def test_a_delivery_that_is_only_verified_is_neither_written_nor_repaired(policy: Drift, expected: Drift) -> None:
    only = verification_only(delivery(1, "a", apply=ApplyPolicy(drift=policy)), NOON)
    assert only.apply.drift is expected
    assert only.write_restraint(NOON + timedelta(hours=23)) is not None
    assert only.restart_restraint(NOON + timedelta(hours=23)) is not None


@pytest.mark.parametrize(("left_s", "expected"), [(None, 300), (-5, 1), (0.2, 1), (7, 7), (86_400, 300)])
def test_a_restraint_is_rechecked_at_its_end_and_every_five_minutes(left_s: float | None, expected: float) -> None:
    until = None if left_s is None else NOON + timedelta(seconds=left_s)
    assert recheck_s(Restraint(HELD, "x", until), NOON) == expected
