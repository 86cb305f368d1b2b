"""Faults of the platform's surroundings: a killed agent, failing pods, a sick Dapr, other writers, lost permissions."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

import msgspec
import pytest

from governor.agent.platforms.kubernetes.proof.sidecar_reader import SidecarReader, SidecarReading
from governor.agent.platforms.kubernetes.restarts.records import RECORD, Record
from governor.agent.platforms.kubernetes.restarts.restarter import Restarter
from governor.agent.platforms.kubernetes.workloads.observer import DEPLOYMENTS
from governor.agent.platforms.kubernetes.workloads.views import RESTART
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.state.secret_blobs import SecretBlobs
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.domain.reports import Cause, Instances, State
from governor.errors import GovernorError, Kind
from governor.kube.client import Request, Transport
from governor.kube.objects import ApiResource
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, SECRETS, component, host_of
from tests.contract.agent.platform.bed import (
    BUDGETS,
    IMAGE,
    Agent,
    Bed,
    counts,
    crashing,
    create_budget,
    each_step,
    install_services,
    next_second,
    pod_status,
    resiliency,
    texts,
)
from tests.contract.kube.applyset.bed import RecordingClient, error_of
from tests.contract.kube.bed import account_of
from tests.contract.kube.reflector.bed import UNLIMITED, running, until_true

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORE = "state.redis"
WINDOW_S = 60
ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False)


class KilledError(Exception):
    """The agent is killed."""


def kill_at(client: RecordingClient, path: str, *, after: bool) -> None:
    """Kill the agent before, or after, its first write to a path."""

    async def intercept(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.method != "PATCH" or path not in request.path or "dryRun" in request.query:
            return await send(request)
        if after:
            await send(request)
        raise KilledError

    client.intercept = intercept


def causes(found: Findings) -> set[tuple[State, Cause | None]]:
    return {(each.state, each.cause) for each in found.resources}


class TestKilledAgent:
    @pytest.mark.parametrize("after", [False, True], ids=["before the restart", "after the restart"])
    async def test_a_workload_is_restarted_once(self, bed: Bed, blobs: FileBlobs, after: bool) -> None:
        await bed.deploy("orders", 2)
        delivery = bed.delivery(resiliency(7))
        async with bed.agent(blobs) as killed:
            kill_at(killed.client, "/deployments/", after=after)
            with pytest.raises(KilledError):
                await killed.converge(delivery)
        async with bed.agent(blobs) as agent:
            found = await agent.converge(delivery)
            assert found.verified, texts(found)
            assert counts(found) == {"orders": Instances(2, verified=2)}
            assert await bed.restarts("orders") == 1

    @pytest.mark.parametrize("path", ["/resiliencies/", "/deployments/"], ids=["after the write", "after the restart"])
    async def test_content_that_returns_is_restarted_for_once(self, bed: Bed, blobs: FileBlobs, path: str) -> None:
        await bed.deploy("orders")
        async with bed.agent(blobs) as killed:
            assert (await killed.converge(bed.delivery(resiliency(1)))).verified
            found = await killed.converge(bed.delivery(resiliency(2), unproven="report", verifyWindowSeconds=3))
            assert counts(found) == {"orders": Instances(1, unproven=1)}
            assert await bed.restarts("orders") == 1
            returned = bed.delivery(resiliency(1))
            kill_at(killed.client, path, after=True)
            with pytest.raises(KilledError):
                await killed.converge(returned)
        async with bed.agent(blobs) as agent:
            found = await agent.converge(returned)
            assert found.verified, texts(found)
            assert await bed.restarts("orders") == 2
            agent.client.sent.clear()
            assert (await agent.converge(returned)).verified
            assert agent.client.writes == []

    async def test_a_removal_restarts_workloads_that_were_restarted_for_the_write(
        self, bed: Bed, blobs: FileBlobs
    ) -> None:
        await bed.deploy("orders")
        async with bed.agent(blobs) as killed:
            assert (await killed.converge(bed.delivery(resiliency(7)))).verified
            kill_at(killed.client, "/deployments/", after=True)
            with pytest.raises(KilledError):
                await killed.converge(bed.delivery())
        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery())
            assert found.verified, texts(found)
            assert await bed.restarts("orders") == 2

    async def test_sidecars_that_narrower_scopes_exclude_must_prove_it_all_the_same(
        self, bed: Bed, blobs: FileBlobs
    ) -> None:
        await bed.deploy("orders")
        await bed.deploy("other")
        narrow = bed.delivery(resiliency(1, "other"))
        async with bed.agent(blobs) as killed:
            assert (await killed.converge(bed.delivery(resiliency(1)))).verified
            kill_at(killed.client, "/resiliencies/", after=True)
            with pytest.raises(KilledError):
                await killed.converge(narrow)
        async with bed.agent(blobs) as agent:
            found = await agent.converge(narrow)
            assert found.verified, texts(found)
            assert await bed.restarts("orders") == 2, "its sidecar still had it"
            [pod] = await bed.until_pods("orders", 1, digest=await bed.digest("orders"))
            assert bed.kubelet.sidecars[pod].metadata["resiliencies"] == []

    async def test_the_next_one_takes_back_the_restart_that_fails(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        old = await bed.uids("orders")
        delivery = bed.delivery(resiliency(7))
        bed.kubelet.exits["orders"] = "boom"
        async with bed.agent(blobs) as killed:
            kill_at(killed.client, "/deployments/", after=True)
            with pytest.raises(KilledError):
                await killed.converge(delivery)
        async with bed.agent(blobs) as agent:
            found = await agent.converge(delivery)
            assert causes(found) == {(State.FAILED, Cause.CHANGE)}
            assert await bed.digest("orders") == ""
            assert old <= await bed.uids("orders")

    async def test_the_next_one_replaces_the_pod_that_a_failed_restart_left_behind(
        self, bed: Bed, blobs: FileBlobs
    ) -> None:
        await bed.deploy("ledger", 1, "StatefulSet", serviceName="ledger")
        bed.kubelet.exits["ledger"] = "cannot load limits"
        delivery = bed.delivery(resiliency(7), verifyWindowSeconds=3)
        async with bed.agent(blobs) as killed:

            async def intercept(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
                if request.path.endswith("/eviction"):
                    raise KilledError
                return await send(request)

            killed.client.intercept = intercept
            with pytest.raises(KilledError):
                await killed.converge(delivery)
        await create_budget(bed, "ledger", 1, healthy=0)
        async with bed.agent(blobs) as agent:
            found = await agent.converge(delivery)
            assert (
                "pod ledger-0, which a failed restart left behind, cannot be evicted: The disruption budget ledger"
            ) in texts(found)
            await bed.client.delete(BUDGETS, "ledger", bed.namespace)
            bed.kubelet.exits.clear()
            found = await agent.converge(delivery)
            assert "which a failed restart left behind" not in texts(found)
            await bed.until_pods("ledger", 1, digest="")

    async def test_proofs_from_before_a_repair_do_not_outlive_it(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        [pod] = await bed.pods("orders")
        delivery = bed.delivery(component("store"), unproven="report")
        async with bed.agent(blobs) as killed:
            await killed.converge(bed.delivery())
            load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
            assert (await killed.converge(delivery, each_step(load))).verified
            other = {"spec": {"metadata": [{"name": "redisHost", "value": "elsewhere"}]}}
            await bed.client.patch(COMPONENTS, "store", bed.namespace, other, manager="someone")
            kill_at(killed.client, "/components/", after=True)
            with pytest.raises(KilledError):
                await killed.converge(delivery)
        assert host_of(await bed.client.get(COMPONENTS, "store", bed.namespace)) == "redis:6379"
        async with bed.agent(blobs) as agent:
            # The sidecar has loaded the other content and not noticed the repair.
            found = await agent.converge(delivery)
            assert counts(found) == {"orders": Instances(1, unproven=1)}

    async def test_a_deposed_agent_changes_nothing(self, bed: Bed) -> None:
        await bed.deploy("orders")
        [pod] = await bed.pods("orders")
        blobs = await SecretBlobs.open(bed.client, bed.namespace, "agent")
        async with bed.agent(blobs) as deposed:
            await deposed.converge(bed.delivery())
            load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
            assert (await deposed.converge(bed.delivery(component("store")), each_step(load))).verified
            successor = await SecretBlobs.open(bed.client, bed.namespace, "agent")
            stored = await successor.read("proofs.json")
            error = await error_of(deposed.converge(bed.delivery(component("store", host="new")), each_step(load)))
            assert error.kind is Kind.CONFLICT
            assert await successor.read("proofs.json") == stored
            assert host_of(await bed.client.get(COMPONENTS, "store", bed.namespace)) == "redis:6379"


class TestFailingRestart:
    async def test_the_first_pod_without_a_sidecar_ends_it(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("bare", 2)
        old = await bed.uids("bare")
        bed.injector.skipped.add("bare")
        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery(resiliency(7)))
            assert causes(found) == {(State.FAILED, Cause.RUNTIME)}
            assert "the restart was undone: pod bare-" in texts(found)
            assert "has no sidecar" in texts(found)
            assert await bed.digest("bare") == ""
            assert old <= await bed.uids("bare")

    async def test_it_is_tried_again_ever_more_seldom_also_by_another_process(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("seldom")
        bed.injector.skipped.add("seldom")
        delivery = bed.delivery(resiliency(7))
        async with bed.agent(blobs) as agent:
            first = await agent.converge(delivery)
            assert "the restart was undone: pod seldom-" in texts(first)
            assert "check dapr-sidecar-injector; next try after 2" in texts(first)
            changes = await bed.restarts("seldom")
        async with bed.agent(blobs) as agent:
            again = await agent.converge(delivery)
            assert causes(again) == {(State.FAILED, Cause.RUNTIME)}
            [repeated] = again.workloads
            assert repeated.evidence[-1].text in texts(first), "the same time of the next try"
            assert await bed.restarts("seldom") == changes
            await age_failure(bed, "seldom", timedelta(seconds=30))
            found = await agent.converge(delivery)
            assert "the restart was undone 2 times: pod seldom-" in texts(found)
            bed.injector.skipped.remove("seldom")
            await age_failure(bed, "seldom", timedelta(seconds=60))
            found = await agent.converge(delivery)
            assert found.verified, texts(found)

    async def test_a_change_of_daprs_control_plane_ends_the_wait(self, bed: Bed, blobs: FileBlobs) -> None:
        await install_services(bed.client, bed.namespace)
        await bed.deploy("soon")
        bed.injector.skipped.add("soon")
        delivery = bed.delivery(resiliency(7, "soon"))
        async with bed.agent(blobs, dapr_namespace=bed.namespace) as agent:
            await agent.converge(delivery)
            await age_failure(bed, "soon", timedelta(seconds=30), failures=9)
            changes = await bed.restarts("soon")
            assert "undone 9 times" in texts(await agent.converge(delivery))
            assert await bed.restarts("soon") == changes

            bed.injector.skipped.remove("soon")
            repair = {"spec": {"template": {"metadata": {"annotations": {"repaired": "true"}}}}}
            await bed.client.patch(DEPLOYMENTS, "dapr-sidecar-injector", bed.namespace, repair, manager="tests")
            found = await agent.converge(delivery)
            assert found.verified, texts(found)

    async def test_the_sidecars_of_other_workloads_are_still_asked(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("lone")
        await bed.deploy("orders")
        bed.injector.skipped.add("lone")
        [pod] = await bed.pods("orders")
        async with bed.agent(blobs) as agent:
            await agent.converge(bed.delivery())

            def load(found: Findings) -> None:
                has_failed = any(each.state is State.FAILED for each in found.workloads)
                if has_failed and not bed.kubelet.sidecars[pod].initialised:
                    bed.kubelet.sidecars[pod].load("store", STORE)

            found = await agent.converge(bed.delivery(component("store"), resiliency(7, "lone")), load)
            assert counts(found)["lone"].failed
            assert counts(found)["orders"] == Instances(1, verified=1)

    async def test_the_first_sidecar_that_exits_ends_it_and_is_quoted(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders", 2)
        old = await bed.uids("orders")
        bed.kubelet.exits["orders"] = "cannot load limits"
        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery(resiliency(7)))
            assert causes(found) == {(State.FAILED, Cause.CHANGE)}
            assert "exited: Error, exit code 1: cannot load limits" in texts(found)
            assert await bed.digest("orders") == ""
            assert old <= await bed.uids("orders")

    async def test_a_new_sidecar_that_is_killed_may_prove_it_with_its_next_start(
        self, bed: Bed, blobs: FileBlobs
    ) -> None:
        await bed.deploy("orders")
        bed.kubelet.pending = True
        reports: list[asyncio.Task[None]] = []
        async with bed.agent(blobs) as agent:

            def progress(_: Findings) -> None:
                new = [pod for each in agent.observer.workloads() for pod in each.pods if pod.restart_digest]
                if new and not reports:
                    killed = pod_status([crashing("", 137, "OOMKilled")], ready=False)
                    reports.append(asyncio.ensure_future(bed.report(new[0].name, killed)))
                elif any(pod.sidecar and pod.sidecar.killed for pod in new):
                    bed.kubelet.pending = False

            found = await agent.converge(bed.delivery(resiliency(7)), progress)
            assert found.verified, texts(found)
            assert await bed.restarts("orders") == 1, "undone"

    async def test_a_stateful_set_gets_its_old_pod_back(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("ledger", 1, "StatefulSet", serviceName="ledger")
        bed.kubelet.exits["ledger"] = "cannot load limits"
        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery(resiliency(7)))
            assert causes(found) == {(State.FAILED, Cause.CHANGE)}
        await bed.until_pods("ledger", 1, digest="")

    async def test_the_old_pod_that_is_back_does_not_prove_the_change_that_failed(
        self, bed: Bed, blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evict = Restarter.evict

        async def evict_and_replace(restarter: Restarter, pod: Pod) -> str:
            refused = await evict(restarter, pod)
            await bed.until_pods("journal", 1, digest="")
            return refused

        monkeypatch.setattr(Restarter, "evict", evict_and_replace)
        await bed.deploy("journal", 1, "StatefulSet", serviceName="journal")
        bed.kubelet.exits["journal"] = "cannot load limits"
        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery(resiliency(7)))
            assert causes(found) == {(State.FAILED, Cause.CHANGE)}
            assert "cannot load limits" in texts(found)

    async def test_a_workload_that_is_deleted_meanwhile_is_not_waited_for(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        bed.kubelet.pending = True
        deletion: list[asyncio.Task[None]] = []

        def delete() -> None:
            deletion.append(asyncio.ensure_future(bed.client.delete(DEPLOYMENTS, "orders", bed.namespace)))

        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery(resiliency(7)), each_step(delete))
            await asyncio.gather(*deletion)
            assert sum(each.total for each in counts(found).values()) == 0

    async def test_an_operator_that_reverts_it_is_answered_and_then_named(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")

        async def revert() -> None:
            while True:
                live = await bed.deployment("orders")
                with suppress(GovernorError):  # another writer was faster
                    if live["spec"]["template"]["metadata"]["annotations"].pop(RESTART, ""):
                        await bed.client.replace(DEPLOYMENTS, live, manager="tests")
                await asyncio.sleep(0)

        bed.kubelet.pending = True
        async with bed.agent(blobs) as agent, running(revert()):
            found = await agent.converge(bed.delivery(resiliency(7)))
            assert causes(found) == {(State.FAILED, Cause.RUNTIME)}
            assert "reverted 4 times, by tests" in texts(found)
            assert await bed.digest("orders") == ""

    async def test_sidecars_have_the_window_after_a_long_restart(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        bed.clock.is_stopped = True
        bed.kubelet.pending, bed.kubelet.healthy = True, False
        after = count()

        async with bed.agent(blobs) as agent:

            def progress(_: Findings) -> None:
                [workload] = agent.observer.workloads()
                new = [pod.name for pod in workload.pods if pod.restart_digest]
                if new and bed.kubelet.pending:
                    bed.clock.elapse(WINDOW_S - 1)
                    bed.kubelet.pending = False
                elif new and workload.rolled_out and len(workload.pods) == 1:
                    # The restart is over; its sidecar becomes healthy a few readings later.
                    bed.clock.elapse(1)
                    bed.kubelet.sidecars[new[0]].healthy = next(after) > 3

            found = await agent.converge(bed.delivery(resiliency(7), verifyWindowSeconds=WINDOW_S), progress)
            assert found.verified, texts(found)

    async def test_a_newer_delivery_ends_a_long_restart(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        bed.kubelet.pending = True
        async with bed.agent(blobs) as agent:
            found = await agent.converge(bed.delivery(resiliency(7)), superseded=lambda: len(agent.progress) == 3)
            assert not found.verified
            assert not found.failed
            assert len(agent.progress) == 3
            # The pods of the restart that was not over carry its annotation, not that of the next one.
            bed.kubelet.pending = False
            newer = await agent.converge(bed.delivery(resiliency(8)))
            assert newer.verified, texts(newer)
            assert await bed.restarts("orders") == 2

    @pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after it"])
    async def test_a_newer_delivery_does_not_wait_for_silent_sidecars(
        self, bed: Bed, blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch, is_written: bool
    ) -> None:
        await bed.deploy("orders")
        delivery = bed.delivery(resiliency(7))
        async with bed.agent(blobs) as agent:
            await agent.converge(bed.delivery())
            read_all, reads = SidecarReader.read_all, count()

            async def silent(self: SidecarReader, pods: Iterable[Pod]) -> dict[str, SidecarReading]:
                if next(reads) == int(is_written):
                    await asyncio.Event().wait()
                return await read_all(self, pods)

            monkeypatch.setattr(SidecarReader, "read_all", silent)
            agent.client.sent.clear()
            polls = count()
            found = await agent.converge(delivery, superseded=lambda: next(polls) > int(is_written))
            assert not found.verified
            assert any("/resiliencies/" in each for each in agent.client.writes) is is_written
            assert await bed.restarts("orders") == 0

    async def test_old_pods_do_not_prove_content_that_returns(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        async with bed.agent(blobs) as agent:
            assert (await agent.converge(bed.delivery(resiliency(1)))).verified
            [first] = await bed.until_pods("orders", 1, digest=await bed.digest("orders"))
            await next_second()
            bed.kubelet.pending = True
            await agent.converge(bed.delivery(resiliency(2)), superseded=lambda: len(agent.progress) > 20)
            found = await agent.converge(bed.delivery(resiliency(1), verifyWindowSeconds=10))
            assert first in await bed.pods("orders")
            assert counts(found)["orders"].verified == 0, texts(found)


class TestSickDapr:
    async def test_nothing_restarts_until_its_control_plane_is_available(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        async with bed.agent(blobs, dapr_namespace=bed.namespace) as agent:
            delivery = bed.delivery(resiliency(7), verifyWindowSeconds=3)
            found = await agent.converge(delivery)
            assert counts(found) == {"orders": Instances(1, unproven=1)}
            assert "dapr-operator is not installed" in texts(found)
            assert found.restarts_due
            assert await bed.restarts("orders") == 0
            await install_services(bed.client, bed.namespace)
            found = await agent.converge(delivery)
            assert found.verified, texts(found)
            assert not found.restarts_due
            assert await bed.restarts("orders") == 1

    async def test_missing_sidecars_are_left_to_its_watchdog(self, bed: Bed, blobs: FileBlobs) -> None:
        await install_services(bed.client, bed.namespace, watch_interval="2m")
        bed.injector.skipped.add("missed")
        await bed.create("missed")
        await bed.until_created("missed", 1)
        async with bed.agent(blobs, dapr_namespace=bed.namespace) as agent:
            found = await agent.converge(bed.delivery(component("store"), verifyWindowSeconds=3))
            assert counts(found) == {"missed": Instances(1, unproven=1)}
            assert "left to Dapr's watchdog, which replaces them every 2m" in texts(found)
            assert await bed.restarts("missed") == 0

    async def test_a_pod_without_a_sidecar_is_restarted_once_also_without_placement(
        self, bed: Bed, blobs: FileBlobs
    ) -> None:
        await install_services(bed.client, bed.namespace, placement=False)
        bed.injector.skipped.add("late")
        await bed.create("late")
        [old] = await bed.until_created("late", 1)
        bed.injector.skipped.remove("late")
        async with bed.agent(blobs, dapr_namespace=bed.namespace) as agent:
            await until_true(lambda: bool(agent.pods(old)))
            delivery = bed.delivery(component("store", scopes=["late"]))
            for _ in range(2):
                found = await agent.converge(delivery)
                assert found.verified, texts(found)
                assert await bed.restarts("late") == 1

    async def test_a_restart_that_changes_the_version_of_daprd_says_so(self, bed: Bed, blobs: FileBlobs) -> None:
        await install_services(bed.client, bed.namespace, image="daprd:1.18.4")
        await bed.deploy("orders")
        async with bed.agent(blobs, dapr_namespace=bed.namespace) as agent:
            delivery = bed.delivery(resiliency(7, "orders"))
            found = await agent.converge(delivery)
            assert found.verified, texts(found)
            assert f"Deployment/orders is restarted: daprd changes from {IMAGE} to daprd:1.18.4" in texts(found)
            assert texts(await agent.converge(delivery)).count("daprd:1.18.4") == 1, "a check later"

    async def test_nothing_restarts_while_a_component_has_no_secret(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        foreign = component("broken")
        foreign["metadata"]["namespace"] = bed.namespace
        foreign["spec"]["metadata"] = [{"name": "redisPassword", "secretKeyRef": {"name": "gone", "key": "password"}}]
        await bed.client.create(COMPONENTS, foreign, manager="someone")
        async with bed.agent(blobs) as agent:
            delivery = bed.delivery(resiliency(7), verifyWindowSeconds=3)
            found = await agent.converge(delivery)
            assert counts(found) == {"orders": Instances(1, unproven=1)}
            assert "Component broken refers to key password of Secret gone, which does not exist" in texts(found)
            assert await bed.restarts("orders") == 0
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "gone", "namespace": bed.namespace}}
            await bed.client.create(SECRETS, {**secret, "stringData": {"password": "hidden"}}, manager="someone")
            found = await agent.converge(delivery)
            assert found.verified, texts(found)
            assert await bed.restarts("orders") == 1


class TestOutages:
    async def test_a_permission_that_is_taken_away_is_named_and_can_be_given_back(
        self, bed: Bed, blobs: FileBlobs, plane: ControlPlane, transport: Transport
    ) -> None:
        await bed.deploy("orders")
        await grant(bed, "get", "list", "watch", "create", "update", "patch", "delete")
        token = await plane.request_token(bed.namespace, "default")
        client = RecordingClient(transport, account_of(plane, token), UNLIMITED)
        async with bed.agent(blobs, client=client) as agent:
            assert (await agent.converge(bed.delivery())).verified
            await grant(bed, "get", "list", "watch")
            await until(partial(is_allowed, client, bed.namespace, allowed=False))
            delivery = bed.delivery(resiliency(7))
            error = await error_of(agent.converge(delivery))
            assert error.kind is Kind.DENIED
            assert f"the agent may not create configmaps in namespace {bed.namespace}" in error.message
            await grant(bed, "get", "list", "watch", "create", "update", "patch", "delete")
            await until(partial(is_allowed, client, bed.namespace, allowed=True))
            found = await agent.converge(delivery)
            assert found.verified, texts(found)

    async def test_a_restart_of_the_api_server_is_survived(
        self, bed: Bed, blobs: FileBlobs, plane: ControlPlane
    ) -> None:
        await bed.deploy("orders")
        delivery = bed.delivery(resiliency(7))
        async with bed.agent(blobs) as agent:

            async def intercept(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
                body = await send(request)
                if request.method == "PATCH" and "/resiliencies/" in request.path and "dryRun" not in request.query:
                    agent.client.intercept = None
                    await plane.api.kill()
                return body

            agent.client.intercept = intercept
            found = await agent.converge(delivery)
            assert causes(found) == {(State.FAILED, Cause.AGENT)}
            assert "what was written could not be recorded" in texts(found)
            await plane.api.start()
            await until(partial(_is_verified, agent, delivery))
            assert await bed.restarts("orders") == 1


async def age_failure(bed: Bed, name: str, age: timedelta, failures: int = 0) -> None:
    """Rewrite the record of a restart that was undone, as if that were longer ago, and had been more often."""
    live = await bed.deployment(name)
    record = msgspec.json.decode(live["metadata"]["annotations"][RECORD], type=Record)
    aged = msgspec.structs.replace(record, failed=datetime.now(UTC) - age, failures=failures or record.failures)
    change = {"metadata": {"annotations": {RECORD: msgspec.json.encode(aged).decode()}}}
    await bed.client.patch(DEPLOYMENTS, name, bed.namespace, change, manager="tests")


async def _is_verified(agent: Agent, delivery: Delivery) -> bool:
    """Converge; False while the API server cannot be reached."""
    try:
        return (await agent.converge(delivery)).verified
    except GovernorError:
        return False


async def grant(bed: Bed, *verbs: str) -> None:
    """Give the namespace's default service account exactly these verbs."""
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": list(verbs)}
    metadata = {"name": bed.namespace}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": bed.namespace}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": bed.namespace}
    binding = {**role, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [account]}
    del binding["rules"]
    for resource, manifest in ((ROLES, role), (BINDINGS, binding)):
        await bed.client.apply(resource, manifest, manager="tests")


async def is_allowed(client: RecordingClient, namespace: str, *, allowed: bool) -> bool:
    """Return whether a write is allowed, or not, as expected."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "probe", "namespace": namespace}}
    try:
        await client.create(SECRETS, secret, manager="tests", dry_run=True)
    except GovernorError as error:
        return error.kind is Kind.DENIED and not allowed
    return allowed


async def test_nothing_is_verified_while_workloads_cannot_be_observed(
    bed: Bed, blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bed.deploy("orders")
    async with bed.agent(blobs) as agent:
        assert (await agent.converge(bed.delivery())).verified
        monkeypatch.setattr(agent.observer, "failures", lambda: ("cannot observe pods: denied",))

        with pytest.raises(GovernorError, match="not verified, because the workloads are not known: cannot observe"):
            await agent.converge(bed.delivery())


async def test_a_new_process_keeps_the_secrets_to_which_it_may_return(bed: Bed, blobs: FileBlobs) -> None:
    await bed.deploy("orders")

    async def secrets() -> int:
        return len([each async for each in bed.client.list(SECRETS, bed.namespace)])

    async with bed.agent(blobs) as killed:
        assert (await killed.converge(bed.delivery(component("store", password="first-pw")))).verified
    changed = bed.delivery(component("store", password="other-pw"), unproven="report", verifyWindowSeconds=3)
    async with bed.agent(blobs) as agent:
        for _ in range(2):
            assert not (await agent.converge(changed)).verified
            assert await secrets() == 2
        changed = bed.delivery(component("store", password="other-pw"))
        found = await agent.converge(changed)
        assert found.verified, texts(found)
        await agent.platform.release()
        assert await secrets() == 1


class TestNothingWritten:
    async def test_a_change_that_the_api_server_rejects_costs_no_proof(self, bed: Bed, blobs: FileBlobs) -> None:
        await bed.deploy("orders")
        [pod] = await bed.pods("orders")
        verified = bed.delivery(component("store"))
        async with bed.agent(blobs) as agent:
            await agent.converge(bed.delivery())
            load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
            assert (await agent.converge(verified, each_step(load))).verified
            invalid = component("store", host="new")
            invalid["spec"]["metadata"] = "not a list"
            rejected = await agent.converge(bed.delivery(invalid))
            assert causes(rejected) == {(State.FAILED, Cause.CHANGE)}
            found = await agent.converge(verified)
            assert found.verified, texts(found)
            assert await bed.restarts("orders") == 0

    async def test_an_outage_before_the_write_does_not_turn_a_reload_into_a_restart(
        self, bed: Bed, blobs: FileBlobs
    ) -> None:
        await bed.deploy("orders")
        [pod] = await bed.pods("orders")
        load = partial(bed.kubelet.sidecars[pod].load, "store", STORE)
        delivery = bed.delivery(component("store", host="new"))
        async with bed.agent(blobs) as killed:
            await killed.converge(bed.delivery())
            assert (await killed.converge(bed.delivery(component("store")), each_step(load))).verified
            kill_at(killed.client, "/components/", after=False)
            with pytest.raises(KilledError):
                await killed.converge(delivery)
        async with bed.agent(blobs) as agent:
            found = await agent.converge(delivery, each_step(load))
            assert found.verified, texts(found)
            assert await bed.restarts("orders") == 0
