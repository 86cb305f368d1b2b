"""A mutating webhook that changes the agent's objects: named, not fought, and never verified."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from governor.agent.state.file_blobs import FileBlobs
from governor.domain.reports import Cause, State
from testbed.kube.control_plane import ControlPlane
from testbed.kube.webhooks import Webhook
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, component, host_of
from tests.contract.agent.platform.bed import Agent, Bed, each_step, texts
from tests.contract.agent.platform.conftest import WEBHOOKS

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"


@asynccontextmanager
async def mutating(plane: ControlPlane, bed: Bed) -> AsyncIterator[None]:
    """Run a webhook that sets the host of each Component of the namespace, active when this returns."""

    def patch(_: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"op": "replace", "path": "/spec/metadata/0/value", "value": "proxy:6379"}]

    async with Webhook(plane.authority, lambda _: "", patch) as webhook:
        rule = {"apiGroups": ["dapr.io"], "apiVersions": ["*"], "resources": ["components"], "operations": ["*"]}
        hook = {
            "name": "hosts.example.com",
            "clientConfig": webhook.client_config,
            "rules": [{**rule, "operations": ["CREATE", "UPDATE"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bed.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        manifest = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": bed.namespace},
            "webhooks": [hook],
        }
        await bed.client.create(WEBHOOKS, manifest, manager="tests")
        probe = component("probe")
        probe["metadata"]["namespace"] = bed.namespace

        async def is_active() -> bool:
            return host_of(await bed.client.create(COMPONENTS, probe, manager="tests", dry_run=True)) == "proxy:6379"

        await until(is_active)
        try:
            yield
        finally:
            await bed.client.delete(WEBHOOKS, bed.namespace)


def written(agent: Agent) -> int:
    """Return how often the agent has written a Component."""
    sent = [each for each in agent.client.sent if each.method == "PATCH" and "/components/" in each.path]
    return len([each for each in sent if "dryRun" not in each.query])


async def test_what_a_webhook_changes_is_named_and_neither_verified_nor_fought(
    bed: Bed, blobs: FileBlobs, plane: ControlPlane
) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
    async with bed.agent(blobs) as agent, mutating(plane, bed):
        assert (await agent.converge(bed.delivery())).verified
        delivery = bed.delivery(component("store"))
        for _ in range(5):
            found = await agent.converge(delivery, each_step(load))
            [report] = found.resources
            assert (report.state, report.cause) == (State.FAILED, Cause.RUNTIME)
            assert "is not stored as it was applied: spec.metadata[redisHost].value; a mutating webhook" in texts(found)
        assert written(agent) == 1
        assert await bed.restarts("orders") == 0


async def test_a_webhook_that_is_added_later_revokes_what_was_verified(
    bed: Bed, blobs: FileBlobs, plane: ControlPlane
) -> None:
    delivery = bed.delivery(component("store"))
    async with bed.agent(blobs) as agent:
        assert (await agent.converge(delivery)).verified
        assert await agent.platform.find_drift(delivery) is None
        async with mutating(plane, bed):
            # Any write lets the webhook change the object.
            await bed.client.patch(
                COMPONENTS, "store", bed.namespace, {"metadata": {"labels": {"a": "b"}}}, manager="tests"
            )
            agent.client.sent.clear()
            for _ in range(5):
                drift = await agent.platform.find_drift(delivery)
                assert drift is not None
                assert "spec.metadata[redisHost].value" in str(drift)
                await agent.converge(delivery)
            assert written(agent) == 0
        drift = await agent.platform.find_drift(delivery)
        assert drift is not None
        assert drift.is_repairable
        assert (await agent.converge(delivery)).verified
        assert host_of(await bed.client.get(COMPONENTS, "store", bed.namespace)) == "redis:6379"
