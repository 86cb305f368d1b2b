"""The loop: repairs of drift are limited, reports follow what a platform finds, and what ends a trial."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec
import pytest

from governor.agent import inbox as agent_inbox
from governor.agent import ledger
from governor.agent.ledger import DeliveryPhase
from governor.agent.loop import FIRST_DELIVERY_S, KEY, Loop, Repairs
from governor.agent.outbox import Outbox
from governor.agent.platform import Progress, Superseded
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.findings import DriftFindings, Findings, InstanceFindings, combine
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.reports import Cause, Evidence, Finding, Instances, Report, State, WorkloadRef, overall
from governor.domain.windows import Hold
from governor.process.clock import Clock, VirtualClock
from governor.process.reconcile.reconciler import Done, Requeue, Stalled, Waiting
from governor.wire.deliveries import SignedDelivery


def test_each_repair_in_a_row_waits_longer_up_to_a_limit() -> None:
    repairs, now_s, waits = Repairs(), 1000.0, []
    for _ in range(12):
        waits.append(repairs.wait_s(now_s))
        now_s += waits[-1]
        repairs.add(now_s)
    assert waits == [0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_a_repair_after_a_long_calm_is_the_first_again() -> None:
    repairs = Repairs()
    repairs.add(0.0)
    repairs.add(2.0)
    assert repairs.wait_s(3.0) == 3.0
    assert (repairs.wait_s(1000.0), repairs.count) == (0.0, 0)


# -- a platform behind the loop ------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = ResourceRef("Component", "shop", "one")
ORDERS, CARTS = (WorkloadRef("shop", "Deployment", name) for name in ("orders", "carts"))
DELIVERY = Delivery("r1", 3, 1, 1, "sha256:0", (), (), ApplyPolicy())


def found(*states: State, carts: State = State.VERIFIED) -> Findings:
    """Return findings with these states of the instances of one workload, and with a second workload."""
    orders = [InstanceFindings(f"orders-{number}", {ONE: finding(state)}) for number, state in enumerate(states)]
    return combine([ONE], {ORDERS: orders, CARTS: [InstanceFindings("carts-0", {ONE: finding(carts)})]}, NOW)


def finding(state: State) -> Finding:
    return Finding(state=state, evidence=(Evidence("sidecar", NOW, state),))


class Platform:
    """A platform on which a delivery has these results, one after another; it records what is reported meanwhile."""

    def __init__(self, outbox: Outbox, *results: Findings) -> None:
        self.workloads: Mapping[WorkloadRef, int] = {ORDERS: 3, CARTS: 1}
        self.results: Mapping[str, Findings] = {}
        """Results by digest, in place of the others."""
        self.converged: list[str] = []
        self.reported: list[Report | None] = []
        self.released: list[Report | None] = []
        self.starts = 0
        self.drift: DriftFindings | None = None
        self._outbox = outbox
        self._results = results

    def refs(self, _delivery: Delivery) -> tuple[ResourceRef, ...]:
        return (ONE,)

    def hold(self) -> Hold | None:
        return None

    def start(self) -> None:
        self.starts += 1

    async def converge(
        self, delivery: Delivery, _received: Evidence, progress: Progress, _superseded: Superseded
    ) -> Findings:
        self.converged.append(delivery.digest)
        if delivery.digest in self.results:
            return self.results[delivery.digest]
        self.reported.append(self._outbox.newest)
        for each in self._results:
            progress(each)
            self.reported.append(self._outbox.newest)
        return self._results[-1]

    async def find_drift(self, _delivery: Delivery, *, after_failure: bool = False) -> DriftFindings | None:
        if self.drift is not None and self.drift.is_past and not after_failure:
            return None
        return self.drift

    async def release(self) -> None:
        self.released.append(self._outbox.newest)

    async def run(self) -> None:
        await asyncio.Event().wait()


class Inbox:
    """An inbox with one delivery or none."""

    unstored = None
    received_at = NOW
    signed = SignedDelivery("{}", "key", "signature")

    def __init__(self, newest: Delivery | None = DELIVERY) -> None:
        self.newest = newest


class Ledger:
    """A ledger on which every delivery is on trial."""

    def phase(self, _delivery: Delivery) -> DeliveryPhase:
        return DeliveryPhase.ON_TRIAL

    def was_verified(self, _delivery: Delivery) -> bool:
        return True

    async def record_verified(self, *_args: object) -> None:
        return


def loop(inbox: Inbox, outbox: Outbox, platform: Platform, clock: Clock) -> Loop:
    return Loop(cast("agent_inbox.Inbox", inbox), outbox, platform, cast("ledger.Ledger", Ledger()), clock)


async def test_reports_carry_growing_counts_while_a_change_is_under_way() -> None:
    outbox, done, left = Outbox(VirtualClock()), State.VERIFIED, State.APPLIED
    platform = Platform(
        outbox, found(left, left, left), found(done, left, left), found(done, done, left), found(*[done] * 3)
    )
    await loop(Inbox(), outbox, platform, VirtualClock()).reconcile(KEY)
    counts = [report.workloads[0].instances for report in platform.reported if report]
    assert counts == [Instances(3), Instances(3), Instances(3, 1), Instances(3, 2), Instances(3, 3)]
    assert [overall(report) for report in platform.reported if report] == [State.RECEIVED, *[left] * 3, done]


async def test_a_workload_that_is_unproven_does_not_end_the_reports_about_the_others() -> None:
    outbox, done, left = Outbox(VirtualClock()), State.VERIFIED, State.APPLIED
    platform = Platform(outbox, *(found(*states, carts=State.UNPROVEN) for states in ([left], [done])))
    reconciling = loop(Inbox(), outbox, platform, VirtualClock())
    for _ in range(2):
        await reconciling.reconcile(KEY)
    states = [report.workloads[0].state for report in platform.reported if report]
    # The second time nothing is reported as applied, because it was reported as unproven before.
    assert states == [State.RECEIVED, left, done, done, done, done]
    assert outbox.newest is not None
    assert outbox.newest.workloads[1].cause is Cause.RUNTIME


async def test_what_waits_for_a_first_delivery_is_started_after_a_while() -> None:
    outbox, clock = Outbox(VirtualClock()), VirtualClock()
    platform = Platform(outbox)
    reconciling = loop(Inbox(None), outbox, platform, clock)
    assert (await reconciling.reconcile(KEY), platform.starts) == (Requeue(FIRST_DELIVERY_S), 0)
    await clock.advance(FIRST_DELIVERY_S)
    assert (await reconciling.reconcile(KEY), platform.starts) == (Done(), 1)


async def test_what_only_the_delivery_before_needed_is_removed_after_the_report() -> None:
    outbox = Outbox(VirtualClock())
    unproven = Platform(outbox, found(State.UNPROVEN))
    await loop(Inbox(), outbox, unproven, VirtualClock()).reconcile(KEY)
    assert unproven.released == []
    verified = Platform(outbox, found(State.VERIFIED))
    await loop(Inbox(), outbox, verified, VirtualClock()).reconcile(KEY)
    assert [overall(report) for report in verified.released if report] == [State.VERIFIED]


# -- trials --------------------------------------------------------------------------------------------------------

PREVIOUS = msgspec.structs.replace(DELIVERY, sequence=2, digest="sha256:previous")


class Trials:
    """A loop with a real ledger, whose last verified delivery is settled."""

    def __init__(self, directory: Path) -> None:
        self.inbox, self.outbox, self.clock = Inbox(), Outbox(VirtualClock()), VirtualClock()
        self.ledger = ledger.Ledger(AgentState(FileBlobs(directory)))
        self.platform = Platform(self.outbox)
        inbox = cast("agent_inbox.Inbox", self.inbox)
        self._loop = Loop(inbox, self.outbox, self.platform, self.ledger, self.clock)

    async def finds(self, found: Findings, *, fallback: Findings | None = None) -> object:
        """Reconcile once; ``fallback`` is the result of the delivery that is returned to."""
        self.platform.results = {DELIVERY.digest: found, PREVIOUS.digest: fallback or found}
        return await self._loop.reconcile(KEY)

    def phase(self) -> DeliveryPhase:
        return self.ledger.phase(DELIVERY)

    @property
    def last_text(self) -> str:
        assert self.outbox.newest is not None
        return self.outbox.newest.workloads[0].evidence[-1].text


@pytest.fixture
async def trials(tmp_path: Path) -> Trials:
    made = Trials(tmp_path)
    await made.ledger.record_verified(PREVIOUS, Inbox.signed)
    await made.ledger.record_settled(PREVIOUS)
    return made


def failed(cause: Cause, *, applied: bool) -> Findings:
    every = found(State.FAILED)
    return msgspec.structs.replace(every.attributed(cause), applied=applied)


VERIFIED = found(State.VERIFIED)


@pytest.mark.parametrize("applied", [False, True], ids=["nothing written", "written in part"])
@pytest.mark.parametrize("cause", [Cause.RUNTIME, Cause.AGENT])
async def test_a_change_is_on_trial_until_the_runtime_lets_it_be_tried(
    trials: Trials, cause: Cause, applied: bool
) -> None:
    for _ in range(2):
        assert isinstance(await trials.finds(failed(cause, applied=applied)), Waiting)
        assert trials.phase() is DeliveryPhase.ON_TRIAL
    # The runtime is repaired, and the change is wrong.
    outcome = await trials.finds(failed(Cause.CHANGE, applied=True), fallback=VERIFIED)
    assert (isinstance(outcome, Stalled), trials.phase()) == (True, DeliveryPhase.QUARANTINED)
    assert trials.platform.converged[-1] == PREVIOUS.digest
    assert "rolled back to bundle sha256:previous" in trials.last_text


async def test_what_an_earlier_try_wrote_is_returned_from(trials: Trials) -> None:
    await trials.finds(failed(Cause.RUNTIME, applied=True))
    await trials.finds(failed(Cause.CHANGE, applied=False), fallback=VERIFIED)
    assert "rolled back to bundle sha256:previous" in trials.last_text


async def test_a_change_without_proof_at_the_end_of_its_window_is_not_on_trial_any_more(trials: Trials) -> None:
    assert isinstance(await trials.finds(found(State.UNPROVEN)), Stalled)
    assert trials.phase() is DeliveryPhase.SETTLED


async def test_a_change_is_on_trial_as_long_as_restarts_for_it_are_due(trials: Trials) -> None:
    waiting = msgspec.structs.replace(found(State.UNPROVEN), restarts_due=True)
    assert isinstance(await trials.finds(waiting), Waiting)
    assert trials.phase() is DeliveryPhase.ON_TRIAL
    await trials.finds(failed(Cause.CHANGE, applied=True), fallback=VERIFIED)
    assert trials.phase() is DeliveryPhase.QUARANTINED


PAST = DriftFindings({ONE: "was changed"}, (ORDERS,), "api-server", is_past=True)


async def test_a_failure_after_drift_is_not_held_against_the_change_three_times(trials: Trials) -> None:
    trials.platform.drift = PAST
    for _ in range(3):
        assert await trials.finds(failed(Cause.CHANGE, applied=True)) == Requeue(0.0)
        assert trials.phase() is DeliveryPhase.ON_TRIAL
        assert trials.outbox.newest is not None
        one = trials.outbox.newest.resources[0]
        assert (one.state, one.cause) == (State.FAILED, Cause.RUNTIME)
        assert one.evidence[-1].text == "was changed; does not count against the change: failed"
    await trials.finds(failed(Cause.CHANGE, applied=True), fallback=VERIFIED)
    assert trials.phase() is DeliveryPhase.QUARANTINED


async def test_another_delivery_is_not_held_responsible_for_drift_during_the_one_before(trials: Trials) -> None:
    trials.platform.drift = PAST
    for _ in range(3):
        await trials.finds(failed(Cause.CHANGE, applied=True))
    trials.inbox.newest = msgspec.structs.replace(DELIVERY, sequence=4)
    assert await trials.finds(failed(Cause.CHANGE, applied=True)) == Requeue(0.0)
    assert trials.phase() is DeliveryPhase.ON_TRIAL


async def test_a_failure_during_drift_is_judged_after_the_repair(trials: Trials) -> None:
    """The repairs wait longer and longer, so there is no loop without an end."""
    trials.platform.drift = msgspec.structs.replace(PAST, is_past=False)
    assert await trials.finds(failed(Cause.CHANGE, applied=True)) == Requeue(0.0)
    waiting = await trials.finds(failed(Cause.CHANGE, applied=True))
    assert isinstance(waiting, Requeue)
    assert (waiting.after_s > 0, trials.phase()) == (True, DeliveryPhase.ON_TRIAL)
    trials.platform.drift = None
    await trials.finds(failed(Cause.CHANGE, applied=True), fallback=VERIFIED)
    assert trials.phase() is DeliveryPhase.QUARANTINED


@pytest.mark.parametrize("cause", [Cause.RUNTIME, Cause.AGENT])
async def test_what_is_not_the_changes_failure_needs_no_excuse(trials: Trials, cause: Cause) -> None:
    trials.platform.drift = PAST
    assert isinstance(await trials.finds(failed(cause, applied=True)), Waiting)
