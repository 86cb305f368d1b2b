"""Restarts and disruption budgets, which a rolling update does not respect."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.findings import Findings
from governor.domain.reports import Cause, State
from tests.contract.agent.platform.bed import BUDGETS, Bed, counts, create_budget, resiliency, texts

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALL_AT_ONCE = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}


class Once:
    """Something that is done when the findings first say something."""

    def __init__(self, text: str, then: Coroutine[Any, Any, object] | None = None) -> None:
        self._text = text
        self._then = then
        self.done = False

    def __call__(self, found: Findings) -> None:
        if self._text in texts(found) and not self.done:
            self.done = True
            if self._then is not None:
                self._task = asyncio.ensure_future(self._then)


async def test_a_restart_waits_until_the_budget_allows_it(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    await create_budget(bed, "orders", 1)
    lower = bed.client.patch(BUDGETS, "orders", bed.namespace, {"spec": {"minAvailable": 0}}, manager="tests")
    async with bed.agent(blobs) as agent:
        waits = Once("PodDisruptionBudget orders allows no disruption now (1 healthy pods, 1 required)", lower)
        reads: list[str] = []

        def progress(found: Findings) -> None:
            waits(found)
            if not waits.done:
                reads.extend(each.path for each in agent.client.sent if each.path.endswith("/deployments/orders"))

        found = await agent.converge(bed.delivery(resiliency(7)), progress)
        assert found.verified, texts(found)
        assert waits.done
        assert await bed.restarts("orders") == 1
        assert reads == [], "one request for each workload that waits"


async def test_a_budget_that_a_restart_violates_is_reported_and_keeps_others_waiting(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("first", 2, strategy=ALL_AT_ONCE)
    await bed.deploy("second")
    await create_budget(bed, "first", 1)
    await create_budget(bed, "second", 1)
    bed.kubelet.pending = True
    violation = "PodDisruptionBudget first is violated (0 healthy pods, 1 required)"
    lower = bed.client.patch(BUDGETS, "second", bed.namespace, {"spec": {"minAvailable": 0}}, manager="tests")
    async with bed.agent(blobs) as agent:
        violated, waits = Once(violation, lower), Once(f"waits for {bed.ref('first')}: {violation}")

        def progress(found: Findings) -> None:
            violated(found)
            waits(found)
            bed.kubelet.pending = not waits.done

        found = await agent.converge(bed.delivery(resiliency(7)), progress)
        assert found.verified, texts(found)
        reported = [each for found in agent.progress for each in found.workloads if each.workload.name == "first"]
        assert ["0 of 2 instances verified", violation] in [[item.text for item in each.evidence] for each in reported]


async def test_a_restart_that_violates_a_budget_for_a_whole_window_is_taken_back(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders", 2, strategy=ALL_AT_ONCE)
    await create_budget(bed, "orders", 1)
    bed.kubelet.pending = True
    async with bed.agent(blobs) as agent:
        waits = Once("the restart was undone: PodDisruptionBudget orders is violated")
        found = await agent.converge(bed.delivery(resiliency(7), verifyWindowSeconds=5), waits)
        assert counts(found)["orders"].failed == counts(found)["orders"].total
        assert {(each.state, each.cause) for each in found.resources} == {(State.FAILED, Cause.RUNTIME)}
        assert "the restart was undone: PodDisruptionBudget orders is violated (0 healthy" in texts(found)
        assert await bed.digest("orders") == ""
