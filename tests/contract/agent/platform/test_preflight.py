"""Preflight in a cluster with real controllers: what is tried, what a failure stops, and what is left behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from governor.agent.platforms.kubernetes.workloads.observer import JOBS, PODS
from governor.agent.platforms.kubernetes.workloads.views import PREFLIGHT
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.agent.preflight import IMPOSSIBLE
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.verification.findings import Findings
from governor.domain.reports import State
from governor.errors import GovernorError
from governor.kube.client import Request, Transport
from governor.kube.objects import ApiResource, Object, ref_of
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, CONFIGURATIONS, SECRETS, component, resource
from tests.contract.agent.platform.bed import IMAGE, Agent, Bed, container, counts, texts
from tests.contract.kube.applyset.bed import RecordingClient, error_of
from tests.contract.kube.bed import account_of
from tests.contract.kube.reflector.bed import UNLIMITED, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"
QUOTAS = ApiResource("", "v1", "ResourceQuota", "resourcequotas", namespaced=True)
POLICIES = ApiResource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", namespaced=True)
CREATED_KINDS = (JOBS, PODS, SECRETS, COMPONENTS, CONFIGURATIONS)
REFUSED = "cannot init {}: dial tcp 10.0.0.1:6379: connect: connection refused"


class KilledError(Exception):
    """The agent is killed."""


@asynccontextmanager
async def beside(step: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do something while the block runs; what is not done at its end is cancelled."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(step)
        yield
        task.cancel()


async def left(bed: Bed) -> list[str]:
    """Return all that preflights have created and that is still there."""
    return [
        f"{kind.kind}/{each['metadata']['name']}"
        for kind in CREATED_KINDS
        async for each in bed.client.list(kind, bed.namespace, labels=PREFLIGHT, metadata_only=True)
    ]


async def until_nothing_is_left(bed: Bed) -> None:
    async def is_clean() -> bool:
        return await left(bed) == []

    await until(is_clean)


def evidence(found: Findings, name: str = "store") -> list[str]:
    return [item.text for each in found.resources if each.resource.name == name for item in each.evidence]


async def reload(bed: Bed, name: str) -> None:
    """Let the application's sidecars load a Component once it is written."""

    async def is_written() -> bool:
        found = bed.client.list(COMPONENTS, bed.namespace, fields=f"metadata.name={name}", metadata_only=True)
        return bool([each async for each in found])

    await until(is_written)
    for pod in await bed.pods("orders"):
        bed.kubelet.sidecars[pod].load(name, STORE)


async def test_a_change_is_tried_in_a_pod_that_no_application_and_no_service_notices(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders")
    pods = await bed.uids("orders")
    seen: list[Object] = []

    async with bed.agent(blobs) as agent:
        assert (await agent.converge(bed.delivery())).verified
        reports = []

        async def watch() -> None:
            while True:
                seen.extend([each async for each in bed.client.list(PODS, bed.namespace, labels=PREFLIGHT)])
                reports.append(set(agent.platform.workloads))
                await asyncio.sleep(0.01)

        async with running(watch()), beside(reload(bed, "store")):
            found = await agent.converge(bed.delivery(component("store", password="s3cret-1"), preflight="sidecar"))
        assert found.verified, texts(found)
        assert evidence(found)[:3] == ["received", "initialised", f"written: Component/{bed.namespace}/store"]
        assert [evidence(each)[1] for each in agent.progress] == ["initialised"] * len(agent.progress)
        assert counts(found)["orders"].verified == 1
        assert all(each == {bed.ref("orders")} for each in reports)
        assert await bed.uids("orders") == pods
        again = await agent.converge(bed.delivery(component("store", password="s3cret-1"), preflight="sidecar"))
        assert "initialised" not in evidence(again)
    pod = seen[-1]
    assert "app" not in pod["metadata"]["labels"]
    assert pod["metadata"]["annotations"]["dapr.io/app-id"].startswith("orders-preflight-")
    assert [each["name"] for each in pod["spec"]["containers"]] == ["preflight", "daprd"]
    await until_nothing_is_left(bed)


async def test_a_repeated_run_reports_the_same_preflight(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        delivery = bed.delivery(component("store"), preflight="sidecar")
        async with beside(reload(bed, "store")):
            assert (await agent.converge(delivery)).verified
        agent.client.sent.clear()
        assert evidence(await agent.converge(delivery))[1] == "initialised"
        assert not any("/jobs" in each for each in agent.client.writes)


async def test_a_change_that_cannot_be_initialised_is_rejected_and_nothing_is_written(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders")
    pods = await bed.uids("orders")
    bed.kubelet.preflight_exit = REFUSED
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        found = await agent.converge(bed.delivery(component("store"), preflight="sidecar"))
        assert (found.failed, found.unreachable) == (True, True)
        assert evidence(found)[-1].endswith(REFUSED.format("store"))
        assert [each async for each in bed.client.list(COMPONENTS, bed.namespace)] == []
        assert agent.progress == []
    assert await bed.uids("orders") == pods
    await until_nothing_is_left(bed)


async def test_a_failed_connection_proves_nothing_if_a_network_policy_selects_only_the_workload(
    bed: Bed, blobs: FileBlobs
) -> None:
    await bed.deploy("orders")
    spec = {"podSelector": {"matchLabels": {"app": "orders"}}, "policyTypes": ["Egress"], "egress": [{}]}
    metadata = {"name": "database-access", "namespace": bed.namespace}
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
    await bed.client.create(POLICIES, policy, manager="tests")
    bed.kubelet.preflight_exit = REFUSED
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        store = component("store")
        labelled = await agent.converge(bed.delivery(store, preflight="sidecar", preflightLabels=["app"]))
        assert labelled.failed, texts(labelled)
        assert evidence(labelled)[-1].endswith(REFUSED.format("store"))
        async with beside(reload(bed, "store")):
            found = await agent.converge(bed.delivery(store, preflight="sidecar"))
        assert not found.failed
        assert evidence(found)[1].startswith("inconclusive: NetworkPolicy database-access treats the throw-away pod")


async def test_a_pod_that_cannot_run_is_no_verdict_and_the_message_says_why(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    pull = {"waiting": {"reason": "ImagePullBackOff", "message": f"cannot pull {IMAGE}"}}
    states: dict[str, Object] = {
        "0/3 nodes are available": {"phase": "Pending", "conditions": [unscheduled]},
        f"ImagePullBackOff: cannot pull {IMAGE}": {
            "phase": "Pending",
            "containerStatuses": [container("daprd", ready=False, started=False, containerID="", state=pull)],
        },
    }
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        for reason, status in states.items():
            bed.kubelet.preflight = status
            error = await impossible(bed, agent, lambda pod: pod is not None and is_explained(pod))
            assert reason in error.message
            assert [each async for each in bed.client.list(COMPONENTS, bed.namespace)] == []
        bed.kubelet.preflight = None
        bed.injector.skipped_preflights = True
        try:
            assert "Dapr's injector added no sidecar" in (await impossible(bed, agent, lambda _: False)).message
        finally:
            bed.injector.skipped_preflights = False
    await until_nothing_is_left(bed)


async def test_an_exhausted_quota_is_no_verdict(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    metadata = {"name": "few", "namespace": bed.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "1"}}}
    await bed.client.create(QUOTAS, quota, manager="tests")

    async def is_counted() -> bool:
        return bool((await bed.client.get(QUOTAS, "few", bed.namespace)).get("status", {}).get("used"))

    await until(is_counted)
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        error = await impossible(bed, agent, lambda pod: pod is None)
        assert "no pod was created for Job orders-preflight-" in error.message
        assert "ResourceQuota" in error.message
    await until_nothing_is_left(bed)


def is_explained(pod: Pod) -> bool:
    return bool(pod.unscheduled or (pod.sidecar and pod.sidecar.waiting))


async def impossible(bed: Bed, agent: Agent, is_known: Callable[[Pod | None], bool]) -> GovernorError:
    """Converge until the agent knows why there is no sidecar, let its time pass, and return the error."""

    async def elapse() -> None:
        async def is_reached() -> bool:
            found = [each async for each in bed.client.list(JOBS, bed.namespace, labels=PREFLIGHT)]
            jobs = [(ref_of(each), each["metadata"]["uid"]) for each in found if not each["spec"]["suspend"]]
            return any(is_known(agent.observer.throw_away(*each)) for each in jobs)

        await until(is_reached)
        bed.clock.elapse(120.0)

    delivery = bed.delivery(component("store"), preflight="sidecar")
    async with beside(elapse()):
        error = await error_of(agent.converge(delivery))
    assert error.code == IMPOSSIBLE
    return error


async def test_an_agent_that_may_not_create_jobs_applies_without_a_preflight(
    bed: Bed, blobs: FileBlobs, plane: ControlPlane, transport: Transport
) -> None:
    await bed.deploy("orders")
    client = bed.new_client()
    token = await plane.request_token(bed.namespace, "default")
    without_rules = RecordingClient(transport, account_of(plane, token), UNLIMITED)

    async def as_other(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        is_job = request.method == "POST" and request.path.endswith("/jobs")
        return await (without_rules.send(request) if is_job else send(request))

    client.intercept = as_other
    async with bed.agent(blobs, client=client) as agent:
        await agent.converge(bed.delivery())
        async with beside(reload(bed, "store")):
            found = await agent.converge(bed.delivery(component("store"), preflight="sidecar"))
        assert found.verified, texts(found)
        expected = f"applied without a preflight: the agent may not create Jobs in namespace {bed.namespace}"
        assert evidence(found)[1] == expected


async def test_a_killed_agent_leaves_nothing_that_the_next_one_does_not_remove(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    delivery = bed.delivery(component("store", password="s3cret-1"), preflight="sidecar")
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
    for number in range(1, len(STEPS)):
        client = bed.new_client()
        async with bed.agent(blobs, client=client) as killed:
            kill_after_steps(client, number)
            with pytest.raises(KilledError):
                await killed.converge(delivery)
            client.intercept = None
        assert await left(bed) != []
        async with bed.agent(blobs) as agent:
            await until(lambda: is_swept(bed, agent))
    async with bed.agent(blobs) as agent, beside(reload(bed, "store")):
        found = await agent.converge(delivery)
        assert found.verified, texts(found)


async def is_swept(bed: Bed, agent: Agent) -> bool:
    """Let an agent converge, which tries a failed sweep again: the server may not serve each kind yet."""
    await agent.converge(bed.delivery())
    return await left(bed) == []


STEPS = ("Job", "Secret", "Component", "Configuration", "start", "Secret", "Component", "Configuration", "Job")
"""What a preflight creates, starts and removes, one request each."""


def kill_after_steps(client: RecordingClient, number: int) -> None:
    """Let no request pass after a number of steps of a preflight."""
    steps = 0

    async def intercept(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        nonlocal steps
        if steps >= number:
            raise KilledError
        steps += request.method != "GET"
        return await send(request)

    client.intercept = intercept


async def test_a_newer_delivery_ends_the_preflight(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")
    bed.kubelet.pending = True
    async with bed.agent(blobs) as agent:
        await agent.converge(bed.delivery())
        is_superseded = False

        async def supersede() -> None:
            nonlocal is_superseded

            async def has_pod() -> bool:
                return bool([each async for each in bed.client.list(PODS, bed.namespace, labels=PREFLIGHT)])

            await until(has_pod)
            is_superseded = True

        async with beside(supersede()):
            found = await agent.converge(
                bed.delivery(component("store"), preflight="sidecar"), superseded=lambda: is_superseded
            )
        assert {each.state for each in found.resources} == {State.RECEIVED}
        assert [each async for each in bed.client.list(COMPONENTS, bed.namespace)] == []
    await until_nothing_is_left(bed)


async def test_what_no_running_sidecar_loads_is_not_tried(bed: Bed, blobs: FileBlobs) -> None:
    async with bed.agent(blobs) as agent:
        unloaded = resource("Configuration", "settings", spec={"tracing": {"samplingRate": "1"}})
        found = await agent.converge(bed.delivery(unloaded, preflight="sidecar"))
        assert evidence(found, "settings")[1] == "not tried: no running sidecar loads it"
        assert not any("/jobs" in each for each in agent.client.writes)
