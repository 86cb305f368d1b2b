"""The contract of a platform: what the agent's loop relies on, as cases that run on each platform with real sidecars.

The cases share nothing: each begins with a delivery of its own, whatever was there before.
"""

from governor.domain.reports import Instances, State
from testbed.waiting import until
from tests.contract.agent.platforms.bed import (
    Bed,
    Deliveries,
    component,
    processes,
    ref,
    replaced,
    resiliency,
    running_agent,
    store,
    texts,
)

SECRET = "correct-horse-battery"


class PlatformCases:
    """The cases; a subclass runs them with the fixture ``bed`` of its module."""

    async def test_a_first_delivery_is_applied_and_verified(self, bed: Bed) -> None:
        one, two = store("one", "1", bed.namespace, bed.alpha), store("two", "1", bed.namespace)
        async with running_agent(bed) as agent:
            delivery = Deliveries().next(one, two)
            found = await agent.converge(delivery)
            assert found.verified, texts(found)
            assert [each.resource for each in found.resources] == [ref(one), ref(two)]
            assert set(agent.platform.refs(delivery)) == {ref(one), ref(two)}
            by_resource = {each.resource: {inner.workload for inner in each.workloads} for each in found.resources}
            expected = {bed.workload(app_id): number for app_id, number in bed.replicas.items()}
            assert by_resource == {ref(one): {bed.workload(bed.alpha)}, ref(two): {*expected}}
            assert dict(agent.platform.workloads) == expected
            assert {each.workload: each.instances for each in found.workloads} == {
                workload: Instances(number, verified=number) for workload, number in expected.items()
            }
            assert await bed.live_spec("one") == one["spec"]
            await until(agent.is_ready)

    async def test_a_changed_component_is_proven_by_the_running_sidecar(self, bed: Bed) -> None:
        deliveries, one, two = Deliveries(), store("one", "1", bed.namespace), store("one", "2", bed.namespace)
        async with running_agent(bed) as agent:
            await agent.converge(deliveries.next(one))
            before = processes(bed.alpha), processes(bed.beta)
            found = await agent.converge(deliveries.next(two))
            assert found.verified, texts(found)
            assert "state.in-memory initialised" in texts(found)
            assert (processes(bed.alpha), processes(bed.beta)) == before
            assert await bed.live_spec("one") == two["spec"]

    async def test_a_kind_that_needs_a_start_restarts_the_affected_sidecar_once_and_no_other(self, bed: Bed) -> None:
        deliveries, one = Deliveries(), store("one", "1", bed.namespace)
        async with running_agent(bed) as agent:
            await agent.converge(deliveries.next(one))
            alpha, beta = processes(bed.alpha), processes(bed.beta)
            delivery = deliveries.next(one, resiliency(7, bed.namespace, bed.beta))
            found = await agent.converge(delivery)
            assert found.verified, texts(found)
            assert agent.progress, "a restart takes time, which progress shows"
            await replaced(bed.beta, beta, bed.replicas[bed.beta])
            assert processes(bed.alpha) == alpha
            beta, versions = processes(bed.beta), await bed.versions()

        async with running_agent(bed) as restarted:
            found = await restarted.converge(delivery)
            assert found.verified, texts(found)
            assert await restarted.platform.find_drift(delivery) is None
            assert (processes(bed.alpha), processes(bed.beta)) == (alpha, beta)
            assert await bed.versions() == versions, "the restarted agent wrote what was there"

            found = await restarted.converge(deliveries.next(one))
            assert found.verified, texts(found)
            await replaced(bed.beta, beta, bed.replicas[bed.beta])
            assert processes(bed.alpha) == alpha

    async def test_a_removal_is_proven(self, bed: Bed) -> None:
        deliveries, kept, removed = Deliveries(), store("kept", "1", bed.namespace), store("gone", "1", bed.namespace)
        async with running_agent(bed) as agent:
            await agent.converge(deliveries.next(kept, removed))
            before = processes(bed.alpha), processes(bed.beta)
            found = await agent.converge(deliveries.next(kept))
            assert found.verified, texts(found)
            assert {each.resource for each in found.resources} == {ref(kept), ref(removed)}
            assert "no longer listed" in texts(found)
            assert await bed.live_spec("gone") is None
            assert (processes(bed.alpha), processes(bed.beta)) == before

    async def test_a_delivery_that_changes_nothing_writes_nothing_and_verifies(self, bed: Bed) -> None:
        deliveries, one = Deliveries(), store("one", "1", bed.namespace)
        async with running_agent(bed) as agent:
            await agent.converge(deliveries.next(one))
            before = await bed.versions(), processes(bed.alpha)
            found = await agent.converge(deliveries.next(one))
            assert found.verified, texts(found)
            assert (await bed.versions(), processes(bed.alpha)) == before

    async def test_what_a_sidecar_cannot_initialise_fails_with_its_own_error_and_without_secrets(
        self, bed: Bed
    ) -> None:
        deliveries, good = Deliveries(), store("one", "1", bed.namespace, bed.beta)
        # The database is a number: daprd quotes the wrong value, which is the password too. It keeps running.
        wrong = {"redisHost": "127.0.0.1:1", "redisPassword": SECRET, "redisDB": SECRET}
        bad = component("bad", "state.redis", bed.namespace, [bed.beta], **wrong)
        bad["spec"]["ignoreErrors"] = True
        async with running_agent(bed) as agent:
            assert (await agent.converge(deliveries.next(good))).verified
            found = await agent.converge(deliveries.next(good, bad))
            assert {each.resource: each.state for each in found.resources} == {
                ref(good): State.VERIFIED,
                ref(bad): State.FAILED,
            }, texts(found)
            assert {each.workload: each.state for each in found.workloads} == {
                bed.workload(each): State.FAILED if each == bed.beta else State.VERIFIED for each in bed.replicas
            }
            assert "error decoding 'redisDB'" in texts(found), texts(found)
            assert SECRET not in texts(found)
            # The loop takes it back.
            found = await agent.converge(deliveries.next(good))
            assert found.verified, texts(found)

    async def test_drift_is_found_named_and_repaired(self, bed: Bed) -> None:
        one, other = store("one", "1", bed.namespace, bed.alpha), store("other", "1", bed.namespace, bed.beta)
        async with running_agent(bed) as agent:
            delivery = Deliveries().next(one, other)
            assert (await agent.converge(delivery)).verified
            assert await agent.platform.find_drift(delivery) is None
            await bed.tamper("one", "tampered")
            drift = await agent.platform.find_drift(delivery)
            assert drift is not None
            assert list(drift.texts) == [ref(one)]
            assert drift.workloads == (bed.workload(bed.alpha),)
            assert drift.is_repairable
            repaired = await agent.converge(delivery)
            assert repaired.verified, texts(repaired)
            assert await bed.live_spec("one") == one["spec"]
            assert await agent.platform.find_drift(delivery) is None

    async def test_drift_wakes_the_loop(self, bed: Bed) -> None:
        deliveries = Deliveries()
        async with running_agent(bed) as agent:
            # Sidecars that start or end wake it too: none does while a Component is reloaded.
            await agent.converge(deliveries.next(store("one", "1", bed.namespace, bed.beta)))
            await bed.settled()
            await agent.converge(deliveries.next(store("one", "2", bed.namespace, bed.beta)))
            wakes = agent.wakes
            await bed.tamper("one", "tampered")

            async def woken() -> bool:
                return agent.wakes > wakes

            await until(woken)

    async def test_a_superseded_delivery_ends_early_and_the_next_one_is_verified(self, bed: Bed) -> None:
        deliveries, limits = Deliveries(), resiliency(9, bed.namespace, bed.beta)
        one, two, three = (store("one", value, bed.namespace, bed.beta) for value in ("1", "2", "3"))
        async with running_agent(bed) as agent:
            await agent.converge(deliveries.next(one))
            # Nothing but being superseded, or proven, ends one of these before the test's own time limit.
            superseded = deliveries.next(two, limits, verify_window_seconds=3600)
            found = await agent.converge(superseded, superseded=lambda: True)
            assert not found.verified
            assert not found.failed, texts(found)
            found = await agent.converge(deliveries.next(three, verify_window_seconds=3600))
            assert found.verified, texts(found)
            assert await bed.live_spec("one") == three["spec"]
