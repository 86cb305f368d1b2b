"""An agent that only observes, beside tools that write: what it proves, with a role that permits no write."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

import pytest

from governor.agent.main import run
from governor.agent.platforms.kubernetes.observation.observation import Observation
from governor.agent.platforms.kubernetes.permissions import OBSERVED
from governor.agent.platforms.kubernetes.proof.probes import Probes
from governor.agent.platforms.kubernetes.proof.sidecar_reader import Route, SidecarReader, open_session
from governor.agent.platforms.kubernetes.resources.additions import last_change
from governor.agent.platforms.kubernetes.resources.inventory import dapr_objects
from governor.agent.platforms.kubernetes.resources.object_watch import ObjectWatch
from governor.agent.platforms.kubernetes.workloads.observer import Observer
from governor.agent.redaction import Redactor
from governor.agent.settings import Settings
from governor.agent.verification.findings import Findings
from governor.domain.reports import State
from governor.errors import GovernorError
from governor.kube.client import Transport
from governor.kube.objects import ApiResource
from governor.process.clock import SystemClock
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, component
from tests.contract.agent.platform.bed import ACCOUNTS, Bed
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.bed import account_of
from tests.contract.kube.reflector.bed import UNLIMITED, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "Role", "roles", namespaced=True)
BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True)
OBSERVER = "observer"
STORE = "state.redis"
WINDOW_S = 60.0


class Observing(NamedTuple):
    """An observation that is run step by step; ``shown`` are the findings, ``woken`` has one item for each wake-up."""

    observation: Observation
    client: RecordingClient
    shown: list[Findings]
    woken: list[None]

    async def is_woken(self, before: int) -> bool:
        """Return whether the watch of the resources has called for a check since."""
        return len(self.woken) > before

    async def states(self, name: str = "store") -> dict[str, State]:
        """Check once; return the states of the workloads for a Component, by name."""
        await self.observation.reconcile()
        [report] = [each for each in self.shown[-1].resources if each.resource.name == name]
        return {each.workload.name: each.state for each in report.workloads}

    def text(self, workload: str, name: str = "store") -> str:
        """Return the last evidence of a workload for a Component."""
        [report] = [each for each in self.shown[-1].resources if each.resource.name == name]
        return next(each.evidence[-1].text for each in report.workloads if each.workload.name == workload)


async def grant_observation(bed: Bed) -> None:
    """Create a service account with the permissions of an observing agent."""
    metadata = {"name": OBSERVER, "namespace": bed.namespace}
    rules = [
        {"apiGroups": [each.group], "resources": list(each.resources), "verbs": list(each.verbs)} for each in OBSERVED
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": OBSERVER},
        "subjects": [{"kind": "ServiceAccount", **metadata}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    for resource, manifest in ((ACCOUNTS, account), (ROLES, role), (BINDINGS, binding)):
        await bed.client.create(resource, manifest, manager="tests")


@asynccontextmanager
async def observing(bed: Bed, plane: ControlPlane, transport: Transport) -> AsyncIterator[Observing]:
    """Run what an observation watches, as its own service account."""
    await grant_observation(bed)
    access = account_of(plane, await plane.request_token(bed.namespace, OBSERVER))
    client, redactor = RecordingClient(transport, access, UNLIMITED), Redactor()

    async def is_granted() -> bool:
        try:
            await dapr_objects(client, [bed.namespace])
        except GovernorError:
            return False
        return True

    await until(is_granted)
    shown: list[Findings] = []
    woken: list[None] = []
    async with open_session() as session:
        observer = Observer(client, [bed.namespace], clock=SystemClock(), on_change=lambda: None)
        watch = ObjectWatch(client, "", "", clock=SystemClock(), on_change=lambda: woken.append(None))
        probes = Probes(client, SidecarReader(session, client, Route.DIRECT), redactor, bed.clock)
        observation = Observation(client, [bed.namespace], observer, watch, probes, redactor, bed.clock, shown.append)
        async with running(observer.run()), running(watch.run()):
            yield Observing(observation, client, shown, woken)


async def create(bed: Bed, name: str = "store") -> None:
    manifest = component(name)
    manifest["metadata"]["namespace"] = bed.namespace
    await bed.client.create(COMPONENTS, manifest, manager="kubectl-client-side-apply")


async def change(bed: Bed, host: str, name: str = "store") -> None:
    content = {"spec": {"metadata": [{"name": "redisHost", "value": host}]}}
    await bed.client.patch(COMPONENTS, name, bed.namespace, content, manager="kubectl-client-side-apply")


async def test_a_change_of_another_tool_is_proven_without_a_write_and_a_stuck_sidecar_is_named(
    bed: Bed, plane: ControlPlane, transport: Transport
) -> None:
    for name in ("orders", "stuck"):
        await bed.deploy(name)
    orders, stuck = bed.sidecars(*await bed.pods("orders"), *await bed.pods("stuck"))
    async with observing(bed, plane, transport) as observed:
        await observed.observation.reconcile()
        await create(bed)
        assert await observed.states() == {"orders": State.APPLIED, "stuck": State.APPLIED}
        for each in (orders, stuck):
            each.load("store", STORE)
        assert await observed.states() == {"orders": State.VERIFIED, "stuck": State.VERIFIED}

        before = len(observed.woken)
        await change(bed, "elsewhere:6379")
        await until(partial(observed.is_woken, before))
        assert await observed.states() == {"orders": State.APPLIED, "stuck": State.APPLIED}
        orders.load("store", STORE)
        assert await observed.states() == {"orders": State.VERIFIED, "stuck": State.APPLIED}
        assert "state.redis initialised 1 -> 2 times and none failed" in observed.text("orders")
        bed.clock.elapse(WINDOW_S)
        assert await observed.states() == {"orders": State.VERIFIED, "stuck": State.UNPROVEN}
        assert "state.redis was initialised 0 times since the write, expected 1" in observed.text("stuck")

        number = len(observed.shown)
        await observed.observation.reconcile()
        assert len(observed.shown) == number, "it shows only what has changed"
        stuck.load("store", STORE)
        assert await observed.states() == {"orders": State.VERIFIED, "stuck": State.VERIFIED}, "late is not never"
        assert observed.client.writes == []


async def test_what_was_changed_before_the_first_check_is_unproven(
    bed: Bed, plane: ControlPlane, transport: Transport
) -> None:
    await bed.deploy("orders")
    await create(bed)
    [sidecar] = bed.sidecars(*await bed.pods("orders"))
    sidecar.load("store", STORE)
    async with observing(bed, plane, transport) as observed:
        assert await observed.states() == {"orders": State.UNPROVEN}
        assert observed.text("orders") == "no sidecar was started after the write"
        await change(bed, "elsewhere:6379")
        sidecar.load("store", STORE)
        await observed.states()
        bed.clock.elapse(WINDOW_S)
        assert await observed.states() == {"orders": State.UNPROVEN}
        assert "the counters may have risen for that" in observed.text("orders")


async def test_the_counter_of_one_component_proves_no_other_one_that_changes_soon_after_it(
    bed: Bed, plane: ControlPlane, transport: Transport
) -> None:
    for name in ("orders", "slow"):
        await bed.deploy(name)
    orders, slow = bed.sidecars(*await bed.pods("orders"), *await bed.pods("slow"))
    async with observing(bed, plane, transport) as observed:
        await observed.observation.reconcile()
        await create(bed)
        orders.load("store", STORE)
        assert await observed.states() == {"orders": State.VERIFIED, "slow": State.APPLIED}
        await create(bed, "other")
        slow.load("other", STORE)
        orders.metadata["components"].append({"name": "other", "type": STORE, "version": "v1"})
        assert await observed.states("other") == {"orders": State.APPLIED, "slow": State.APPLIED}
        for sidecar, name in ((orders, "other"), (slow, "store")):
            sidecar.load(name, STORE)
        for name in ("store", "other"):
            assert await observed.states(name) == {"orders": State.VERIFIED, "slow": State.VERIFIED}
            assert "initialised 0 -> 2 times" in observed.text("orders", name)


@pytest.mark.parametrize("last", ["second:6379", "before:6379"], ids=["new content", "former content"])
async def test_one_initialisation_does_not_prove_the_second_of_two_writes(
    bed: Bed, plane: ControlPlane, transport: Transport, last: str
) -> None:
    await bed.deploy("orders")
    [sidecar] = bed.sidecars(*await bed.pods("orders"))
    async with observing(bed, plane, transport) as observed:
        await observed.observation.reconcile()
        await create(bed)
        sidecar.load("store", STORE)
        assert await observed.states() == {"orders": State.VERIFIED}
        await change(bed, "before:6379")
        sidecar.load("store", STORE)
        assert await observed.states() == {"orders": State.VERIFIED}
        for host in ("first:6379", last):
            await change(bed, host)
        sidecar.load("store", STORE)
        assert await observed.states() == {"orders": State.APPLIED}
        bed.clock.elapse(WINDOW_S)
        assert await observed.states() == {"orders": State.UNPROVEN}


async def test_pods_newer_than_the_resources_prove_them_at_once_and_what_fails_or_stays_is_named(
    bed: Bed, plane: ControlPlane, transport: Transport
) -> None:
    await create(bed)
    written = last_change(await bed.client.get(COMPONENTS, "store", bed.namespace))

    async def is_later() -> bool:
        return datetime.now(UTC) >= written + timedelta(seconds=1)

    await until(is_later)  # times in the cluster are in whole seconds
    await bed.deploy("orders")
    [sidecar] = bed.sidecars(*await bed.pods("orders"))
    async with observing(bed, plane, transport) as observed:
        assert await observed.states() == {"orders": State.VERIFIED}
        assert "started after the write" in observed.text("orders")

        await change(bed, "wrong:6379")
        sidecar.failed["store"] += 1
        assert await observed.states() == {"orders": State.FAILED}
        bed.clock.elapse(WINDOW_S)
        assert await observed.states() == {"orders": State.FAILED}

        await bed.client.delete(COMPONENTS, "store", bed.namespace)
        assert await observed.states() == {"orders": State.APPLIED}
        assert observed.text("orders") == "the sidecar still lists it"
        sidecar.metadata["components"] = []
        assert await observed.states() == {"orders": State.VERIFIED}
        assert observed.client.writes == []


async def test_the_program_prints_a_table_whenever_another_tool_changes_something(
    bed: Bed, plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    await bed.deploy("orders")
    [pod] = await bed.pods("orders")
    settings = Settings(platform="kubernetes", observe=True, namespaces=(bed.namespace,), kubeconfig=plane.kubeconfig)
    printed: list[str] = []

    async def is_printed(text: str) -> bool:
        printed.append(capsys.readouterr().out)
        return text in "".join(printed)

    async def observe() -> None:
        await run(settings)

    async with running(observe()):
        await until(partial(is_printed, "RESOURCE"))
        await create(bed)
        await until(partial(is_printed, "applied"))
        bed.kubelet.sidecars[pod].load("store", STORE)
        proof = "listed as state.redis/v1, state.redis initialised 0 -> 1 times and none failed"
        await until(partial(is_printed, f"verified  pod {pod}: {proof}"))
