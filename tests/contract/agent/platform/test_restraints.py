"""Maintenance windows and holds in a cluster: what is written and restarted, and what waits."""

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from governor.agent.restraints import verification_only
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import WindowScope
from governor.domain.reports import Instances, State
from governor.domain.windows import HELD, WAITING_FOR_WINDOW, Hold, Window
from governor.process.clock import SystemClock
from tests.contract.agent.apply.bed import COMPONENTS, component
from tests.contract.agent.platform.bed import RESILIENCIES, Bed, counts, each_step, resiliency, texts

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"
AHEAD = timedelta(hours=6)


class Time:
    """The wall clock of the platform, which tests set."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> Any:
        return SystemClock().now() + self.ahead


@pytest.fixture
def time(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> Time:
    """Let the test set the wall clock."""
    time = Time()
    monkeypatch.setattr(bed.clock, "now", time.now)
    return time


def restrained(given: Delivery, time: Time, **fields: Any) -> Delivery:
    """Return a delivery with a window that opens in some hours, or with other restraints."""
    later = {"windows": (Window(f"{time.now() + AHEAD:%H:%M}", 60),)}
    return msgspec.structs.replace(given, **(fields or later))


def reason(found: Findings) -> str:
    return found.waits_for.reason if found.waits_for else ""


async def test_a_change_that_restarts_is_not_written_until_the_window(bed: Bed, blobs: FileBlobs, time: Time) -> None:
    await bed.deploy("orders", 2)
    pods = await bed.uids("orders")
    async with bed.agent(blobs) as agent:
        assert (await agent.converge(bed.delivery())).verified
        delivery = restrained(bed.delivery(component("store"), resiliency(7)), time)
        agent.client.sent.clear()
        waiting = await agent.converge(delivery)
        assert (reason(waiting), waiting.verified, waiting.applied) == (WAITING_FOR_WINDOW, False, False)
        assert {each.state for each in (*waiting.resources, *waiting.workloads)} == {State.RECEIVED}
        assert "outside of the maintenance window (next: " in texts(waiting)
        assert (agent.client.writes, await bed.uids("orders")) == ([], pods)

        time.ahead = AHEAD + timedelta(minutes=1)
        found = await agent.converge(delivery)
        assert found.verified, texts(found)
        assert (await bed.restarts("orders"), found.restraint) == (1, None)


async def test_a_change_that_sidecars_reload_waits_only_if_the_policy_says_so(
    bed: Bed, blobs: FileBlobs, time: Time
) -> None:
    await bed.deploy("orders")
    (pod,) = await bed.pods("orders")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        everything = restrained(bed.delivery(component("store"), windows=WindowScope.ALL), time)
        assert reason(await agent.converge(everything)) == WAITING_FOR_WINDOW
        assert [each async for each in bed.client.list(COMPONENTS, bed.namespace)] == []
        load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
        found = await agent.converge(restrained(bed.delivery(component("store")), time), each_step(load))
        assert found.verified, texts(found)
        assert await bed.digest("orders") == ""


async def test_while_held_nothing_is_written_and_what_is_in_use_is_verified(
    bed: Bed, blobs: FileBlobs, time: Time
) -> None:
    await bed.deploy("orders")
    hold = Hold(time.now() + AHEAD, "inventory")
    async with bed.agent(blobs) as agent:
        current = bed.delivery(resiliency(7))
        assert (await agent.converge(current)).verified
    async with bed.agent(blobs) as agent:
        agent.client.sent.clear()
        assert reason(await agent.converge(restrained(bed.delivery(component("store")), time, hold=hold))) == HELD
        held = await agent.converge(restrained(current, time, hold=hold))
        assert held.verified, texts(held)
        assert agent.client.writes == []

        # Drift is found and left as it is.
        await bed.client.patch(RESILIENCIES, "limits", bed.namespace, resiliency(9), manager="kubectl")
        drift = await agent.platform.find_drift(restrained(current, time, hold=hold))
        assert drift is not None
        agent.client.sent.clear()
        (pod,) = await bed.pods("orders")
        bed.kubelet.sidecars[pod].healthy = False
        unhealthy = await agent.converge(verification_only(current, time.now()))
        assert not unhealthy.verified
        assert agent.client.writes == []


async def test_a_window_that_ends_stops_between_two_workloads(bed: Bed, blobs: FileBlobs, time: Time) -> None:
    for name in ("first", "second"):
        await bed.deploy(name)
        for pod in await bed.pods(name):
            bed.kubelet.sidecars[pod].metadata["enabledFeatures"] = []
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        now = restrained(bed.delivery(resiliency(7), strategy="rolling"), time)
        time.ahead = AHEAD + timedelta(minutes=1)

        def close(_: Findings) -> None:
            """Close the window once the first restart has begun."""
            time.ahead = timedelta()

        waiting = await agent.converge(now, close)
        assert (reason(waiting), waiting.applied) == (WAITING_FOR_WINDOW, True), texts(waiting)
        assert counts(waiting) == {"first": Instances(1, verified=1), "second": Instances(1)}
        assert {each.workload.name: each.state for each in waiting.workloads} == {
            "first": State.VERIFIED,
            "second": State.APPLIED,
        }
        assert "not restarted: outside of the maintenance window" in texts(waiting)
        assert (await bed.restarts("first"), await bed.restarts("second")) == (1, 0)
        again = await agent.converge(now)
        assert (reason(again), await bed.restarts("second")) == (WAITING_FOR_WINDOW, 0)

        time.ahead = AHEAD + timedelta(minutes=1)
        found = await agent.converge(now)
        assert found.verified, texts(found)
        assert (await bed.restarts("first"), await bed.restarts("second")) == (1, 1)
