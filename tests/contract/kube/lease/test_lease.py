"""One leader at a time on a real API server, however it goes with the server, the Lease and the candidates."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from governor.kube.client import Client, Transport
from governor.kube.objects import Object
from governor.process.supervise import EXIT_FAILED
from testbed.kube.control_plane import ControlPlane
from testbed.pytest_plugin import StartControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.conftest import NAMESPACES
from tests.contract.kube.lease.bed import GoneError, Stage

DAY_S = 86400.0
NOTICE_S = 3.0
"""Within which a leader renews, and a candidate looks, once more."""
TAKEN_S = 15 + 2 * NOTICE_S
"""Within which a lease that nobody renews is taken: one look to see the last change, one to see that it has run out."""


@pytest.fixture
async def stage(api: ControlPlane, transport: Transport, namespace: str) -> AsyncIterator[Stage]:
    async with Stage(transport, admin_of(api), namespace) as stage:
        yield stage


async def test_of_three_one_leads_and_keeps_leading_though_all_clocks_differ(stage: Stage) -> None:
    for wrong_s in (0.0, DAY_S, -DAY_S):
        stage.contender(wrong_s=wrong_s).start()
    leader = await stage.until_led(within_s=NOTICE_S)
    await stage.pass_time(60)
    assert stage.leaders == [leader]
    assert [len(each.terms) for each in stage.contenders if each is not leader] == [0, 0]
    assert leader.election.epoch == 1
    spec = await stage.lease()
    assert spec is not None
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == (leader.election.identity, 1)
    assert spec["leaseDurationSeconds"] == 15
    assert all(each.client.sent <= 2 + 60 / 2 for each in stage.contenders)


async def test_a_leader_that_stops_is_followed_at_once(stage: Stage) -> None:
    first, second, third = stage.contender(), stage.contender(), stage.contender()
    first.start()
    await stage.until_led(within_s=NOTICE_S)
    second.start()
    third.start()
    await stage.pass_time(10)
    await first.stop()
    spec = await stage.lease()
    assert spec is not None
    assert not spec.get("holderIdentity")
    assert not first.election.is_leader
    follower = await stage.until_led(within_s=NOTICE_S)
    assert follower.election.epoch == 2
    stage.assert_no_two_worked_at_once()


async def test_a_leader_that_is_cut_off_steps_down_before_another_takes_over(stage: Stage, faults: FaultyApi) -> None:
    leader = stage.contender(faults.access)
    leader.start()
    await stage.until_led(within_s=NOTICE_S)
    other = stage.contender()
    other.start()
    await stage.pass_time(6)
    assert leader.election.remaining_s > 7

    faults.stall()
    leader.unanswered = True
    await stage.pass_time(11)
    assert not leader.election.is_leader
    assert leader.election.remaining_s == 0
    assert leader.master_status == 0
    (term,) = leader.terms
    assert term[2] is not None, "its work was ended"
    assert not other.terms, "a lease lasts, whether its holder still believes in it or not"
    assert await stage.until_led(within_s=TAKEN_S) is other
    assert other.election.epoch == 2

    faults.flow()
    leader.unanswered = False
    await stage.pass_time(30)
    assert stage.leaders == [other], "what the cut-off leader sent at last came too late"
    stage.assert_no_two_worked_at_once()


async def test_a_short_cut_costs_no_leadership(stage: Stage, faults: FaultyApi) -> None:
    leader = stage.contender(faults.access)
    leader.start()
    await stage.until_led(within_s=NOTICE_S)
    faults.stall()
    leader.unanswered = True
    await stage.pass_time(6)
    faults.flow()
    leader.unanswered = False
    await stage.pass_time(20)
    assert stage.leaders == [leader]
    assert len(leader.terms) == 1


async def test_one_connection_that_hangs_leaves_time_for_another(stage: Stage, faults: FaultyApi) -> None:
    leader = stage.contender(faults.access)
    leader.start()
    await stage.until_led(within_s=NOTICE_S)
    faults.silence()
    leader.unanswered = True
    await stage.pass_time(7)
    leader.unanswered = False
    await stage.pass_time(5)
    assert stage.leaders == [leader]
    assert len(leader.terms) == 1


async def test_a_slow_answer_counts_from_when_the_renewal_was_sent(stage: Stage, faults: FaultyApi) -> None:
    leader = stage.contender(faults.access)
    leader.start()
    await stage.until_led(within_s=NOTICE_S)
    faults.stall()
    leader.unanswered = True
    await stage.pass_time(2)
    sent = leader.client.sent
    await stage.pass_time(4)
    assert (leader.client.sent, leader.client.in_flight) == (sent, 1), "the server has not seen it yet"
    faults.flow()
    leader.unanswered = False
    await stage.settle()
    assert leader.election.remaining_s == 6


async def test_a_process_that_was_paused_does_not_believe_that_it_leads(stage: Stage) -> None:
    leader, other = stage.contender(), stage.contender()
    leader.start()
    await stage.until_led(within_s=NOTICE_S)
    other.start()
    await stage.pass_time(2)
    assert leader.master_status == 1
    leader.clock.missed_s = 30.0
    assert not leader.election.is_leader, "before any of its tasks has run"
    assert leader.master_status == 0
    await stage.pass_time(NOTICE_S)
    assert leader.terms[0][2] is not None, "its work was ended"
    assert [term[0] for term in leader.terms] == [1, 2], "nobody else can have led yet, so it leads again"
    stage.assert_no_two_worked_at_once()


async def test_while_the_store_stands_nobody_leads_and_afterwards_one_does(
    start_api: StartControlPlane, transport: Transport
) -> None:
    plane = await start_api()
    async with Stage(transport, admin_of(plane), "default") as stage:
        for _ in range(3):
            stage.contender().start()
        leader = await stage.until_led(within_s=NOTICE_S)
        await stage.pass_time(4)
        await plane.etcd.pause()
        await stage.pass_time(40, answered=False)
        assert stage.leaders == []
        assert leader.terms[0][2] is not None
        plane.etcd.resume()

        async def is_led() -> bool:
            await stage.pass_time(1)
            return bool(stage.leaders)

        await until(is_led)  # the server needs its own time to come to itself
        stage.assert_no_two_worked_at_once()


async def test_a_leader_keeps_a_lease_that_somebody_labels(stage: Stage) -> None:
    leader, other = stage.contender(), stage.contender()
    leader.start()
    await stage.until_led(within_s=NOTICE_S)
    other.start()
    await stage.pass_time(4)
    await stage.edit(metadata={"labels": {"team": "shop"}}, spec={"leaseDurationSeconds": 1, "leaseTransitions": 0})
    await stage.pass_time(20)
    assert stage.leaders == [leader]
    assert (len(leader.terms), leader.election.epoch) == (1, 1)
    spec = await stage.lease()
    assert spec is not None
    assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (15, 1)


@pytest.mark.parametrize("holder", ["somebody", "", None])
async def test_a_leader_whose_name_somebody_takes_out_steps_down_before_another_leads(
    stage: Stage, holder: str | None
) -> None:
    first, second = stage.contender(), stage.contender()
    first.start()
    leader = await stage.until_led(within_s=NOTICE_S)
    second.start()
    await stage.pass_time(4)
    await stage.edit(spec={"holderIdentity": holder})
    await stage.pass_time(NOTICE_S)
    assert stage.leaders == []
    assert leader.terms[0][2] is not None
    await stage.pass_time(10)
    assert stage.leaders == [], "nobody knows whether somebody leads"
    follower = await stage.until_led(within_s=TAKEN_S)
    assert follower.election.epoch == 2
    stage.assert_no_two_worked_at_once()


async def test_a_lease_that_somebody_deletes_makes_no_two_leaders(stage: Stage) -> None:
    for _ in range(3):
        stage.contender().start()
    leader = await stage.until_led(within_s=NOTICE_S)
    await stage.pass_time(5)
    await stage.delete()
    await stage.pass_time(5)
    assert stage.leaders == [leader], "it alone knows that nobody else can lead"
    assert leader.election.epoch == 2
    assert [term[0] for term in leader.terms] == [1, 2]
    stage.assert_no_two_worked_at_once()


@pytest.mark.parametrize(
    ("spec", "free_after_s"),
    [
        ({}, 15),
        ({"holderIdentity": "x"}, 15),
        ({"holderIdentity": "x", "leaseDurationSeconds": 1, "renewTime": "9999-12-31T23:59:59.999999Z"}, 15),
        ({"holderIdentity": "x", "renewTime": "0001-01-01T00:00:01.000000Z", "acquireTime": None}, 15),
        ({"holderIdentity": "x", "leaseDurationSeconds": 40, "leaseTransitions": 41}, 40),
        ({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 7}, 0),
    ],
)
async def test_a_lease_with_nonsense_in_it_is_left_alone_for_its_duration(
    stage: Stage, spec: Object, free_after_s: float
) -> None:
    await stage.put(spec)
    contender = stage.contender()
    contender.start()
    await stage.settle()
    await stage.pass_time(max(0.0, free_after_s - 1))
    assert bool(stage.leaders) is (free_after_s == 0)
    await stage.until_led(within_s=4)
    assert contender.election.epoch == spec.get("leaseTransitions", 0) + 1


async def test_a_namespace_that_comes_later_is_waited_for(stage: Stage, client: Client) -> None:
    stage.namespace = f"{stage.namespace}-later"
    contender = stage.contender()
    contender.start()
    await stage.pass_time(10)
    assert stage.leaders == []
    manifest: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": stage.namespace}}
    await client.create(NAMESPACES, manifest, manager="tests")
    assert await stage.until_led(within_s=NOTICE_S) is contender


async def test_work_that_ends_by_itself_ends_the_election_and_frees_the_lease(stage: Stage) -> None:
    contender, done = stage.contender(), asyncio.Event()

    async def work() -> None:
        await done.wait()

    contender.work = work
    contender.start()
    await stage.until_led(within_s=NOTICE_S)
    done.set()
    await stage.settle()
    assert contender.running is not None
    assert contender.running.done()
    assert contender.running.exception() is None
    other = stage.contender()
    other.start()
    assert await stage.until_led(within_s=NOTICE_S) is other


async def test_work_that_fails_ends_the_election_with_its_error_and_frees_the_lease(stage: Stage) -> None:
    contender = stage.contender()

    async def work() -> None:
        raise ZeroDivisionError

    contender.work = work
    contender.start()
    await stage.settle()
    assert contender.running is not None
    assert isinstance(contender.running.exception(), ZeroDivisionError)
    spec = await stage.lease()
    assert spec is not None
    assert not spec.get("holderIdentity")


async def test_work_that_goes_on_after_its_leadership_ends_the_program(stage: Stage) -> None:
    contender, let_go = stage.contender(), asyncio.Event()
    cancelled: list[float] = []

    async def work() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                cancelled.append(stage.clock.monotonic())

    contender.work = work
    contender.start()
    await stage.until_led(within_s=NOTICE_S)
    await stage.pass_time(4)
    renewed_s = stage.clock.monotonic()
    await stage.edit(spec={"holderIdentity": "somebody"})
    await stage.pass_time(NOTICE_S)
    assert len(cancelled) == 1
    assert contender.running is not None
    assert not contender.running.done()
    await stage.pass_time(10)
    assert contender.running.done()
    error = contender.running.exception()
    assert isinstance(error, GoneError)
    assert error.args == (EXIT_FAILED,)
    assert stage.clock.monotonic() < renewed_s + 15, "before another could lead"
    let_go.set()
    await asyncio.sleep(0)


async def test_work_that_needs_long_to_stop_keeps_the_lease_until_it_has(stage: Stage) -> None:
    leader, other = stage.contender(), stage.contender()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await leader.clock.sleep(30)

    leader.work = work
    leader.start()
    await stage.until_led(within_s=NOTICE_S)
    other.start()
    await stage.pass_time(4)
    assert leader.running is not None
    leader.running.cancel()
    await stage.pass_time(29)
    assert stage.leaders == [leader]
    await stage.pass_time(2)
    assert leader.running.cancelled()
    assert await stage.until_led(within_s=NOTICE_S) is other
    stage.assert_no_two_worked_at_once()


async def test_an_error_while_the_work_is_stopped_is_not_lost(stage: Stage) -> None:
    contender = stage.contender()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    contender.work = work
    contender.start()
    await stage.until_led(within_s=NOTICE_S)
    await contender.stop()
    assert contender.running is not None
    assert isinstance(contender.running.exception(), ZeroDivisionError)
