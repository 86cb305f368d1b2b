"""Objects that other clients change while a change is on trial: a sidecar that exits for that is not the change's.

The loop runs with its real ledger, one call at a time, so that it learns of events when a test lets it.
"""

import asyncio
from typing import Any, cast

import pytest

from governor.agent import inbox as agent_inbox
from governor.agent.ledger import DeliveryPhase, Ledger
from governor.agent.loop import KEY, Loop
from governor.agent.outbox import Outbox
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import ResourceRef
from governor.domain.reports import Cause, Report, ResourceReport, State, overall
from governor.process.clock import SystemClock
from governor.process.reconcile.reconciler import Outcome, Requeue
from governor.wire.deliveries import SignedDelivery
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, component, host_of
from tests.contract.agent.platform.bed import (
    RESILIENCIES,
    Agent,
    Bed,
    container,
    crashing,
    next_second,
    pod_status,
    resiliency,
    texts_of,
)
from tests.contract.kube.reflector.bed import until_true

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"
BOOM = "boom: the component does not exist"


class Inbox:
    """An inbox with one delivery."""

    unstored = None
    signed = SignedDelivery("{}", "key", "signature")
    received_at = SystemClock().now()
    newest: Delivery


class Trial:
    """The loop of one agent."""

    def __init__(self, bed: Bed, agent: Agent, blobs: FileBlobs) -> None:
        self.bed = bed
        self.outbox = Outbox(SystemClock())
        self.ledger = Ledger(AgentState(blobs))
        self.inbox = Inbox()
        inbox = cast("agent_inbox.Inbox", self.inbox)
        self._loop = Loop(inbox, self.outbox, agent.platform, self.ledger, SystemClock())

    async def run(self, delivery: Delivery | None = None) -> Outcome:
        """Deliver, if anything, and reconcile once."""
        return await self.begin(delivery)

    def begin(self, delivery: Delivery | None = None) -> asyncio.Task[Outcome]:
        """Begin what ``run`` does."""
        if delivery is not None:
            self.inbox.newest = delivery
        return asyncio.create_task(self._loop.reconcile(KEY))

    @property
    def report(self) -> Report:
        assert self.outbox.newest is not None
        return self.outbox.newest

    def phase(self) -> DeliveryPhase:
        return self.ledger.phase(self.inbox.newest)

    def resource(self, name: str) -> ResourceReport:
        return next(each for each in self.report.resources if each.resource.name == name)

    async def reports(self, state: State) -> None:
        """Wait until the delivery is reported in a state."""

        async def is_reported() -> bool:
            return self.outbox.reported_state(self.inbox.newest) is state

        await until(is_reported)


async def edit(bed: Bed, name: str, host: str) -> None:
    """Change a Component as a user does with kubectl."""
    spec = {"spec": {"metadata": [{"name": "redisHost", "value": host}]}}
    await bed.client.patch(COMPONENTS, name, bed.namespace, spec, manager="kubectl-edit")


async def crash(bed: Bed, *pods: str) -> None:
    """Report that the sidecars of some pods exit again and again."""
    for pod in pods:
        await bed.report(pod, pod_status([container("app"), crashing(BOOM)], ready=False))


async def recover(bed: Bed, pod: str, **fields: Any) -> None:
    """Report that the sidecar of a pod has been started again by its kubelet, and runs."""
    ip = (await bed.pods("orders"))[pod]["status"].get("podIP", "")
    await bed.report(pod, pod_status([container("app"), container("daprd", **fields)], ip))


@pytest.mark.parametrize("policy", ["enforce", "warn", "off"])
async def test_an_edit_that_is_undone_is_named_and_the_next_pod_proves_the_change(
    bed: Bed, blobs: FileBlobs, policy: str
) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    # Nothing ends a window.
    bed.clock.is_stopped = True
    async with bed.agent(blobs) as agent:
        trial = Trial(bed, agent, blobs)
        await trial.run(bed.delivery())
        running = trial.begin(bed.delivery(component("store"), drift=policy))
        await trial.reports(State.APPLIED)
        await edit(bed, "store", "elsewhere:1")
        await edit(bed, "store", "redis:6379")
        await crash(bed, pod)

        assert await running == Requeue(0.0)
        store = trial.resource("store")
        assert (store.state, store.cause, trial.phase()) == (State.FAILED, Cause.RUNTIME, DeliveryPhase.ON_TRIAL)
        assert "was changed by another client" in texts_of(store)
        assert BOOM in texts_of(store)

        bed.clock.is_stopped = False
        await next_second()
        running = trial.begin()
        await recover(bed, pod, restartCount=3)
        await running
        assert overall(trial.report) is State.VERIFIED, trial.report
        assert trial.ledger.trial(trial.inbox.newest) is None


async def test_a_sidecar_that_ran_before_a_repair_may_exit_after_it(bed: Bed, blobs: FileBlobs) -> None:
    """It may have received the edit, and exit for it, at any time."""
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    async with bed.agent(blobs) as agent:
        trial = Trial(bed, agent, blobs)
        await trial.run(bed.delivery())
        delivery = bed.delivery(component("store"), component("other"), unproven="report")
        running = trial.begin(delivery)
        await trial.reports(State.APPLIED)
        for name in ("store", "other"):
            bed.kubelet.sidecars[pod].load(name, STORE)
        await running
        assert overall(trial.report) is State.VERIFIED
        await edit(bed, "store", "elsewhere:1")
        running = trial.begin()

        async def is_repaired() -> bool:
            return host_of(await bed.client.get(COMPONENTS, "store", bed.namespace)) == "redis:6379"

        await until(is_repaired)
        await crash(bed, pod)
        await running

        assert (overall(trial.report), trial.phase()) == (State.UNPROVEN, DeliveryPhase.ON_TRIAL)
        assert f"{BOOM}, which does not count against the change" in texts_of(trial.resource("store"))


async def test_a_change_whose_restart_fails_beside_an_edit_is_judged_after_the_repair(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders")
    bed.kubelet.exits["orders"] = BOOM
    edits = [{"spec": {"policies": {"timeouts": {"short": "9s"}}}}]
    async with bed.agent(blobs) as agent:
        trial = Trial(bed, agent, blobs)
        await trial.run(bed.delivery())
        converge = agent.platform.converge

        async def converge_and_edit(*args: Any, **kwargs: Any) -> Findings:
            found = await converge(*args, **kwargs)
            if found.failed and edits:
                await bed.client.patch(RESILIENCIES, "limits", bed.namespace, edits.pop(), manager="kubectl-edit")
            return found

        agent.platform.converge = converge_and_edit  # type: ignore[method-assign]
        limits = ResourceRef("Resiliency", bed.namespace, "limits")
        assert await trial.run(bed.delivery(resiliency(7))) == Requeue(0.0)
        assert trial.phase() is DeliveryPhase.ON_TRIAL
        await trial.run()
        assert trial.phase() is DeliveryPhase.QUARANTINED
        [failed] = [each for each in trial.report.resources if each.resource == limits]
        assert (failed.state, failed.cause, BOOM in texts_of(failed)) == (State.FAILED, Cause.CHANGE, True)
        assert "rolled back to bundle" in texts_of(trial.report.workloads[0])


async def test_a_change_that_fails_beside_an_edit_that_was_undone_is_judged_by_new_pods(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    # Nothing ends a window.
    bed.clock.is_stopped = True
    async with bed.agent(blobs) as agent:
        trial = Trial(bed, agent, blobs)
        await trial.run(bed.delivery())
        running = trial.begin(bed.delivery(component("store")))
        await trial.reports(State.APPLIED)
        await edit(bed, "store", "elsewhere:1")
        await edit(bed, "store", "redis:6379")
        await crash(bed, pod)
        assert await running == Requeue(0.0)

        bed.kubelet.exits["orders"] = BOOM
        await next_second()
        running = trial.begin()
        await recover(bed, pod, restartCount=3)
        await crash(bed, pod)
        await until_true(lambda: trial.phase() is DeliveryPhase.QUARANTINED)
        bed.clock.is_stopped = False
        await running
        assert trial.resource("store").cause is Cause.CHANGE


async def test_where_drift_is_ignored_a_failure_for_an_edit_is_reported_until_it_is_undone(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    bed.clock.is_stopped = True
    async with bed.agent(blobs) as agent:
        trial = Trial(bed, agent, blobs)
        await trial.run(bed.delivery())
        running = trial.begin(bed.delivery(component("store"), drift="off"))
        await trial.reports(State.APPLIED)
        await edit(bed, "store", "elsewhere:1")
        await crash(bed, pod)
        assert await running == Requeue(0.0)

        for _ in range(2):
            await trial.run()
            store = trial.resource("store")
            assert (store.state, store.cause, trial.phase()) == (State.FAILED, Cause.RUNTIME, DeliveryPhase.ON_TRIAL)
            assert "spec.metadata[redisHost].value by kubectl-edit" in texts_of(store)
        assert host_of(await bed.client.get(COMPONENTS, "store", bed.namespace)) == "elsewhere:1"

        await edit(bed, "store", "redis:6379")
        bed.clock.is_stopped = False
        await next_second()
        running = trial.begin()
        await recover(bed, pod, restartCount=3)
        await running
        assert overall(trial.report) is State.VERIFIED, trial.report


async def test_what_another_client_changed_while_no_agent_ran_is_not_held_against_the_change_either(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    delivery = bed.delivery(component("store"), unproven="report")
    async with bed.agent(blobs) as agent:
        trial = Trial(bed, agent, blobs)
        await trial.run(bed.delivery())
        running = trial.begin(delivery)
        await trial.reports(State.APPLIED)
        bed.kubelet.sidecars[pod].load("store", STORE)
        await running
        assert overall(trial.report) is State.VERIFIED
    await edit(bed, "store", "elsewhere:1")
    await edit(bed, "store", "redis:6379")
    bed.clock.is_stopped = True
    async with bed.agent(blobs) as agent:
        trial = Trial(bed, agent, blobs)
        running = trial.begin(delivery)
        await trial.reports(State.APPLIED)
        await crash(bed, pod)
        bed.clock.is_stopped = False
        await running
        assert (overall(trial.report), trial.phase()) == (State.UNPROVEN, DeliveryPhase.SETTLED)
        assert f"{BOOM}, which does not count against the change" in texts_of(trial.resource("store"))
