"""The loop: repairs of drift are limited, and reports follow what a platform finds."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

from governor.agent import inbox as agent_inbox
from governor.agent import ledger
from governor.agent.ledger import DeliveryPhase
from governor.agent.loop import FIRST_DELIVERY_S, KEY, Loop, Repairs
from governor.agent.outbox import Outbox
from governor.agent.platform import Progress, Superseded
from governor.agent.verification.findings import DriftFindings, Findings, InstanceFindings, combine
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.reports import Cause, Evidence, Finding, Instances, Report, State, WorkloadRef, overall
from governor.domain.windows import Hold
from governor.process.clock import Clock, VirtualClock
from governor.process.reconcile.reconciler import Done, Requeue
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
        self.reported: list[Report | None] = []
        self.released: list[Report | None] = []
        self.starts = 0
        self._outbox = outbox
        self._results = results

    def refs(self, _delivery: Delivery) -> tuple[ResourceRef, ...]:
        return (ONE,)

    def hold(self) -> Hold | None:
        return None

    def start(self) -> None:
        self.starts += 1

    async def converge(
        self, _delivery: Delivery, _received: Evidence, progress: Progress, _superseded: Superseded
    ) -> Findings:
        self.reported.append(self._outbox.newest)
        for each in self._results:
            progress(each)
            self.reported.append(self._outbox.newest)
        return self._results[-1]

    async def find_drift(self, _delivery: Delivery) -> DriftFindings | None:
        return None

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
