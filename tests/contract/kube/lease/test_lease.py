"""Leader election on a real API server, with faults of the server, edits of the Lease and failing work."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog.testing

from governor.kube.client import Client, Transport
from governor.kube.objects import Object
from governor.process.supervise import EXIT_FAILED
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.conftest import NAMESPACES
from tests.contract.kube.lease.bed import Election, ExitedError

DAY_S = 86400.0
PERIOD_S = 3.0
"""Time within which a leader renews and a candidate reads the Lease once."""
EXPIRY_S = 15 + 2 * PERIOD_S
"""Time within which an expired lease is acquired: one read observes the last change, one the expiry."""


@pytest.fixture
async def election(api: ControlPlane, transport: Transport, namespace: str) -> AsyncIterator[Election]:
    async with Election(transport, admin_of(api), namespace) as election:
        yield election


async def test_one_of_three_leads_although_all_wall_clocks_differ(election: Election) -> None:
    for offset_s in (0.0, DAY_S, -DAY_S):
        election.contender(offset_s=offset_s).start()
    leader = await election.wait_for_leader(within_s=PERIOD_S)
    await election.advance(60)
    assert election.leaders == [leader]
    assert [len(each.terms) for each in election.contenders if each is not leader] == [0, 0]
    assert leader.elector.epoch == 1
    spec = await election.lease()
    assert spec is not None
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == (leader.elector.identity, 1)
    assert spec["leaseDurationSeconds"] == 15
    assert all(each.client.sent <= 2 + 60 / 2 for each in election.contenders)


async def test_renewals_reuse_one_connection(
    api: ControlPlane, transport: Transport, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FaultyApi(api, transport) as faults, Election(transport, faults.access, namespace) as election:
        # The connector's clock is slightly faster, as a renewal takes time between two retry periods.
        monkeypatch.setattr("aiohttp.connector.monotonic", lambda: 1.01 * election.clock.monotonic())
        election.contender().start()
        await election.wait_for_leader(within_s=PERIOD_S)
        await election.advance(30)
        assert faults.count(lambda request: request.method == "PUT") >= 12
        assert faults.connections == 1


async def test_a_stopped_leader_is_succeeded_at_once(election: Election) -> None:
    first, second, third = election.contender(), election.contender(), election.contender()
    first.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    second.start()
    third.start()
    await election.advance(10)
    await first.stop()
    spec = await election.lease()
    assert spec is not None
    assert not spec.get("holderIdentity")
    assert not first.elector.is_leader
    successor = await election.wait_for_leader(within_s=PERIOD_S)
    assert successor.elector.epoch == 2
    election.assert_terms_do_not_overlap()


async def test_a_candidate_that_waits_logs_each_holder_once(election: Election) -> None:
    first, second = election.contender(), election.contender()
    first.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    with structlog.testing.capture_logs() as logs:
        second.start()
        await election.advance(10)
    assert [(line["event"], line.get("holder")) for line in logs] == [("waiting for lease", first.elector.identity)]


async def test_a_disconnected_leader_steps_down_before_another_leads(election: Election, faults: FaultyApi) -> None:
    leader = election.contender(faults.access)
    leader.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    other = election.contender()
    other.start()
    await election.advance(6)
    assert leader.elector.remaining_s > 7

    faults.stall()
    leader.stalled = True
    await election.advance(11)
    assert not leader.elector.is_leader
    assert leader.elector.remaining_s == 0
    assert leader.master_status == 0
    (term,) = leader.terms
    assert term[2] is not None, "its work was stopped"
    assert not other.terms, "the lease has not expired yet"
    assert await election.wait_for_leader(within_s=EXPIRY_S) is other
    assert other.elector.epoch == 2

    faults.resume()
    leader.stalled = False
    await election.advance(30)
    assert election.leaders == [other], "the late requests of the old leader are rejected"
    election.assert_terms_do_not_overlap()


async def test_a_short_interruption_does_not_lose_the_lease(election: Election, faults: FaultyApi) -> None:
    leader = election.contender(faults.access)
    leader.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    faults.stall()
    leader.stalled = True
    await election.advance(6)
    faults.resume()
    leader.stalled = False
    await election.advance(20)
    assert election.leaders == [leader]
    assert len(leader.terms) == 1


async def test_a_hanging_connection_leaves_time_for_another(election: Election, faults: FaultyApi) -> None:
    leader = election.contender(faults.access)
    leader.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    faults.blackhole()
    leader.stalled = True
    await election.advance(7)
    leader.stalled = False
    await election.advance(5)
    assert election.leaders == [leader]
    assert len(leader.terms) == 1


async def test_a_slow_renewal_counts_from_when_it_was_sent(election: Election, faults: FaultyApi) -> None:
    leader = election.contender(faults.access)
    leader.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    faults.stall()
    leader.stalled = True
    await election.advance(2)
    sent = leader.client.sent
    await election.advance(4)
    assert (leader.client.sent, leader.client.in_flight) == (sent, 1), "the request is still in flight"
    faults.resume()
    leader.stalled = False
    await election.settle()
    assert leader.elector.remaining_s == 6


async def test_a_paused_process_no_longer_leads(election: Election) -> None:
    leader, other = election.contender(), election.contender()
    leader.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    other.start()
    await election.advance(2)
    assert leader.master_status == 1
    leader.clock.paused_s = 30.0
    assert not leader.elector.is_leader, "before any of its tasks has run"
    assert leader.master_status == 0
    await election.advance(PERIOD_S)
    assert leader.terms[0][2] is not None, "its work was stopped"
    assert [term[0] for term in leader.terms] == [1, 2], "no other candidate could acquire it meanwhile"
    election.assert_terms_do_not_overlap()


async def test_a_leader_keeps_and_restores_an_edited_lease(election: Election) -> None:
    leader, other = election.contender(), election.contender()
    leader.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    other.start()
    await election.advance(4)
    await election.edit(metadata={"labels": {"team": "shop"}}, spec={"leaseDurationSeconds": 1, "leaseTransitions": 0})
    await election.advance(20)
    assert election.leaders == [leader]
    assert (len(leader.terms), leader.elector.epoch) == (1, 1)
    spec = await election.lease()
    assert spec is not None
    assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (15, 1)


@pytest.mark.parametrize("holder", ["other", "", None])
async def test_a_leader_whose_identity_is_removed_steps_down_before_another_leads(
    election: Election, holder: str | None
) -> None:
    first, second = election.contender(), election.contender()
    first.start()
    leader = await election.wait_for_leader(within_s=PERIOD_S)
    second.start()
    await election.advance(4)
    await election.edit(spec={"holderIdentity": holder})
    await election.advance(PERIOD_S)
    assert election.leaders == []
    assert leader.terms[0][2] is not None
    await election.advance(10)
    assert election.leaders == [], "the removed holder may still lead"
    successor = await election.wait_for_leader(within_s=EXPIRY_S)
    assert successor.elector.epoch == 2
    election.assert_terms_do_not_overlap()


async def test_deleting_the_lease_does_not_lead_to_two_leaders(election: Election) -> None:
    for _ in range(3):
        election.contender().start()
    leader = await election.wait_for_leader(within_s=PERIOD_S)
    await election.advance(5)
    await election.delete()
    await election.advance(5)
    assert election.leaders == [leader], "the others wait for the deleted lease to expire"
    assert leader.elector.epoch == 2
    assert [term[0] for term in leader.terms] == [1, 2]
    election.assert_terms_do_not_overlap()


@pytest.mark.parametrize(
    ("spec", "held_s"),
    [
        ({}, 15),
        ({"holderIdentity": "x"}, 15),
        ({"holderIdentity": "x", "leaseDurationSeconds": 1, "renewTime": "9999-12-31T23:59:59.999999Z"}, 15),
        ({"holderIdentity": "x", "renewTime": "0001-01-01T00:00:01.000000Z", "acquireTime": None}, 15),
        ({"holderIdentity": "x", "leaseDurationSeconds": 40, "leaseTransitions": 41}, 40),
        ({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 7}, 0),
    ],
)
async def test_a_lease_with_invalid_content_counts_as_held_for_its_duration(
    election: Election, spec: Object, held_s: float
) -> None:
    await election.create(spec)
    contender = election.contender()
    contender.start()
    await election.settle()
    await election.advance(max(0.0, held_s - 1))
    assert bool(election.leaders) is (held_s == 0)
    await election.wait_for_leader(within_s=4)
    assert contender.elector.epoch == spec.get("leaseTransitions", 0) + 1


async def test_a_missing_namespace_is_waited_for(election: Election, client: Client) -> None:
    election.namespace = f"{election.namespace}-later"
    contender = election.contender()
    contender.start()
    await election.advance(10)
    assert election.leaders == []
    assert f'namespaces "{election.namespace}" not found' in contender.elector.failure
    manifest: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": election.namespace}}
    await client.create(NAMESPACES, manifest, manager="tests")
    assert await election.wait_for_leader(within_s=PERIOD_S) is contender


async def test_finished_work_ends_the_elector_and_releases_the_lease(election: Election) -> None:
    contender, done = election.contender(), asyncio.Event()

    async def work() -> None:
        await done.wait()

    contender.work = work
    contender.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    done.set()
    await election.settle()
    assert contender.running is not None
    assert contender.running.done()
    assert contender.running.exception() is None
    other = election.contender()
    other.start()
    assert await election.wait_for_leader(within_s=PERIOD_S) is other


async def test_failed_work_ends_the_elector_with_its_error_and_releases_the_lease(election: Election) -> None:
    contender = election.contender()

    async def work() -> None:
        raise ZeroDivisionError

    contender.work = work
    contender.start()
    await election.settle()
    assert contender.running is not None
    assert isinstance(contender.running.exception(), ZeroDivisionError)
    spec = await election.lease()
    assert spec is not None
    assert not spec.get("holderIdentity")


async def test_work_that_ignores_cancellation_exits_the_process(election: Election) -> None:
    contender, finish = election.contender(), asyncio.Event()
    cancelled: list[float] = []

    async def work() -> None:
        while not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                cancelled.append(election.clock.monotonic())

    contender.work = work
    contender.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    await election.advance(4)
    renewed_s = election.clock.monotonic()
    await election.edit(spec={"holderIdentity": "other"})
    await election.advance(PERIOD_S)
    assert len(cancelled) == 1
    assert contender.running is not None
    assert not contender.running.done()
    await election.advance(10)
    assert contender.running.done()
    error = contender.running.exception()
    assert isinstance(error, ExitedError)
    assert error.args == (EXIT_FAILED,)
    assert election.clock.monotonic() < renewed_s + 15, "before another could lead"
    finish.set()
    await asyncio.sleep(0)


async def test_the_lease_is_held_until_slow_work_has_stopped(election: Election) -> None:
    leader, other = election.contender(), election.contender()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await leader.clock.sleep(30)

    leader.work = work
    leader.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    other.start()
    await election.advance(4)
    assert leader.running is not None
    leader.running.cancel()
    await election.advance(29)
    assert election.leaders == [leader]
    await election.advance(2)
    assert leader.running.cancelled()
    assert await election.wait_for_leader(within_s=PERIOD_S) is other
    election.assert_terms_do_not_overlap()


async def test_an_error_while_stopping_is_raised(election: Election) -> None:
    contender = election.contender()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    contender.work = work
    contender.start()
    await election.wait_for_leader(within_s=PERIOD_S)
    await contender.stop()
    assert contender.running is not None
    assert isinstance(contender.running.exception(), ZeroDivisionError)
