"""What kubectl shows of an agent on a real API server: Events at transitions, and one status object per namespace."""

import asyncio
import json
from collections.abc import Iterable
from itertools import pairwise

import msgspec
import pytest
import structlog.testing

from governor.agent.home import Identity
from governor.agent.platform import Progress, Superseded
from governor.agent.platforms.kubernetes.home import kubernetes_home
from governor.agent.platforms.kubernetes.plans.plan import Action, Plan, WorkloadPlan
from governor.agent.platforms.kubernetes.restarts.restarter import Restarter
from governor.agent.platforms.kubernetes.restarts.restarts import Restarts
from governor.agent.platforms.kubernetes.visibility.announcer import AnnouncedPlatform
from governor.agent.platforms.kubernetes.visibility.runtime_status import RUNTIME_STATUSES
from governor.agent.settings import Settings
from governor.agent.verification.findings import DriftFindings, Findings, uniform
from governor.domain.bundles import Delivery
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, State
from governor.domain.windows import WAITING_FOR_WINDOW, Restraint
from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource
from governor.process.clock import SystemClock
from governor.process.telemetry.instruments import Registry
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.agent.apply.bed import NAMESPACES, SECRET_VALUE, component
from tests.contract.agent.bed import permitted
from tests.contract.agent.visibility.bed import (
    DIGEST,
    AnnouncerBed,
    condition,
    delivery,
    install_definition,
    remove_definition,
)
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEPLOYMENTS, RecordingClient, deployment
from tests.contract.kube.bed import account_of
from tests.contract.kube.controller.bed import events_of
from tests.contract.kube.reflector.bed import running

ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "Role", "roles", namespaced=True)
BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True)
ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
DAPR = ("dapr-operator", "dapr-sentry", "dapr-sidecar-injector")
RULES = [  # those of docs/reference/agent-kubernetes.md
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "update", "delete"]},
    {
        "apiGroups": ["runtime-governor.dev"],
        "resources": ["runtimestatuses"],
        "verbs": ["get", "list", "create", "patch", "delete"],
    },
    {"apiGroups": ["runtime-governor.dev"], "resources": ["runtimestatuses/status"], "verbs": ["patch"]},
]


@pytest.fixture
async def bed(client: Client, namespace: str) -> AnnouncerBed:
    await install_definition(client)
    return AnnouncerBed(client, client, namespace)


async def test_kubectl_shows_the_status_of_a_namespace(bed: AnnouncerBed, api: ControlPlane) -> None:
    await bed.create_workload()
    one = delivery(component("store"))
    async with bed.announcing():
        bed.report(one, *[State.VERIFIED] * 19, State.UNPROVEN, text="it did not load the component")
        await bed.shows_instances("19/20")
    header, row = (await api.kubectl("get", "runtimestatuses", f"-n={bed.namespace}")).splitlines()
    assert header.split() == ["NAME", "VERIFIED", "REASON", "INSTANCES", "DIGEST", "SINCE", "AGE"]
    assert row.split()[:5] == ["r1", "Unknown", "Unproven", "19/20", DIGEST]
    text = await api.kubectl("describe", "runtimestatus/r1", f"-n={bed.namespace}")
    assert "19 of 20 instances verified; " in text
    assert "orders-19: it did not load the component" in text
    await api.kubectl("wait", "rts/r1", f"-n={bed.namespace}", "--for=condition=Applied", "--timeout=30s")


async def test_a_transition_time_changes_only_with_the_status_and_an_unchanged_status_is_not_written(
    bed: AnnouncerBed, client: RecordingClient
) -> None:
    one = delivery(component("store"))

    async def is_read() -> bool:
        return any("/runtimestatuses/r1" in str(each) for each in client.sent)

    async with bed.announcing():
        bed.report(one, State.VERIFIED, State.APPLIED)
        first = await bed.shows_instances("1/2")
        bed.report(one, State.VERIFIED, State.VERIFIED, State.APPLIED)
        second = await bed.shows_instances("2/3")
        assert condition(first)["lastTransitionTime"] == condition(second)["lastTransitionTime"]
        client.sent.clear()
        bed.report(one, State.VERIFIED, State.VERIFIED, State.APPLIED)
        await until(is_read)
        assert not client.writes
        bed.report(one, State.VERIFIED, State.VERIFIED, State.VERIFIED)
        await bed.shows_instances("3/3")
    assert len([each for each in client.writes if "/status" in each]) == 1


async def test_events_appear_once_per_transition_and_repeats_are_counted(bed: AnnouncerBed, api: ControlPlane) -> None:
    await bed.create_workload()
    one = delivery(component("store"))
    await bed.apply(one)
    async with bed.announcing():
        for states in (
            [State.APPLIED] * 2,
            [State.VERIFIED, State.APPLIED],
            [State.VERIFIED] * 2,
            [State.VERIFIED] * 2,
        ):
            bed.report(one, *states)
        await bed.shows_events("store", {"Applied": 1, "Verified": 1})
        await bed.shows_events("orders", {"Verified": 1})
        for _ in range(2):
            bed.report(one, State.FAILED, State.VERIFIED, text="connection refused")
            bed.report(one, State.VERIFIED, State.VERIFIED)
        await bed.shows_events("store", {"Applied": 1, "Verified": 3, "Failed": 2})
        await bed.shows_events("orders", {"Verified": 3, "Failed": 2})
    for kind in ("components.dapr.io/store", "deployment/orders"):
        text = await api.kubectl("describe", kind, f"-n={bed.namespace}")
        assert "connection refused" in text
        assert "governor-agent" in text
    assert f"2/2 instances use digest {DIGEST}" in text


async def test_drift_is_an_event_and_revokes_the_conditions(bed: AnnouncerBed) -> None:
    ref = await bed.create_workload()
    one = delivery(component("store"))
    await bed.apply(one)
    drift = DriftFindings(
        {ResourceRef("Component", bed.namespace, "store"): "spec.type was changed by kubectl-edit"},
        (ref,),
        "api-server",
    )
    async with bed.announcing():
        bed.report(one, State.APPLIED)
        bed.report(one, State.VERIFIED)
        for _ in range(3):
            bed.announcer.report_drift(one, drift)
        await bed.shows_events("store", {"Applied": 1, "Verified": 1, "DriftFound": 1})
        status = await bed.shows_instances("0/1")
    assert condition(status)["status"] == condition(status, "Applied")["status"] == "False"
    assert "kubectl-edit" in condition(status)["message"]


async def test_no_secret_is_shown(bed: AnnouncerBed, api: ControlPlane) -> None:
    await bed.create_workload()
    one = delivery(component("store", password=SECRET_VALUE))
    await bed.apply(one)
    async with bed.announcing():
        bed.report(one, State.FAILED, text=f"cannot connect with password {SECRET_VALUE}")
        bed.announcer.restart_needed(bed.found(one).workloads[0].workload, f"see {SECRET_VALUE}", DIGEST)
        await bed.shows_events("orders", {"Failed": 1, "RestartNeeded": 1})
        status = await bed.shows_instances("0/1")
    shown = json.dumps([status, await events_of(bed.admin, "orders", bed.namespace)])
    assert "cannot connect with password ***" in shown
    assert SECRET_VALUE not in shown


async def test_long_names_digests_and_texts_are_accepted(client: Client, namespace: str) -> None:
    await install_definition(client)
    bed = AnnouncerBed(client, client, namespace, runtime=f"r{'1' * 62}")
    await bed.create_workload("w" * 63)
    one = delivery(component(f"c{'2' * 252}"), digest=f"sha512:{'f' * 128}")
    await bed.apply(one)
    async with bed.announcing():
        bed.report(one, State.FAILED, text="too long " * 10_000)
        await bed.shows_events("w" * 63, {"Failed": 1})
        await bed.shows_events(f"c{'2' * 252}", {"Failed": 1})
        assert (await bed.shows_instances("0/1"))["digest"] == one.digest


async def test_without_the_definition_the_agent_says_so_once_and_events_are_still_written(
    client: Client, namespace: str
) -> None:
    await remove_definition(client)
    bed = AnnouncerBed(client, client, namespace)
    await bed.create_workload()
    one = delivery(component("store"))
    with structlog.testing.capture_logs() as logs:
        async with bed.announcing():
            bed.report(one, State.FAILED)
            await bed.shows_events("orders", {"Failed": 1})
            await until(lambda: _has(logs))
            bed.report(one, State.VERIFIED)
            await bed.shows_events("orders", {"Failed": 1, "Verified": 1})
            await install_definition(client)
            await bed.shows_instances("1/1")
            # Deleted while the agent runs: said again, and written again.
            await remove_definition(client)
            bed.report(one, State.VERIFIED, State.APPLIED)
            await until(lambda: _has(logs, count=2))
            await install_definition(client)
            await bed.shows_instances("1/2")
    warnings = [each for each in logs if each["log_level"] == "warning"]
    assert "runtimestatuses.runtime-governor.dev is not installed" in warnings[0]["error"]
    texts = [each["error"] for each in warnings]
    assert all(one != two for one, two in pairwise(texts)), texts


async def test_without_permissions_the_agent_goes_on_and_writes_once_they_are_granted(
    client: Client, transport: Transport, namespace: str, api: ControlPlane
) -> None:
    await install_definition(client)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent", "namespace": namespace}}
    await client.create(ACCOUNTS, account, manager="tests")
    token = await api.request_token(namespace, "agent")
    bed = AnnouncerBed(client, Client(transport, account_of(api, token)), namespace)
    await bed.create_workload()
    one = delivery(component("store"))

    async def dropped() -> bool:
        return bool(bed.registry.value("governor_events_dropped_total", {"reason": "error"}))

    with structlog.testing.capture_logs() as logs:
        async with bed.announcing():
            bed.report(one, State.UNPROVEN)
            await until(dropped)
            await until(lambda: _has(logs))
            await _grant(client, namespace)
            await bed.shows_instances("0/1")
            bed.report(one, State.VERIFIED)
            await bed.shows_events("orders", {"Verified": 1})
    refused = [each for each in logs if each["event"].startswith("cannot write the status")]
    assert "forbidden" in refused[0]["error"]


async def test_a_deposed_agent_leaves_the_status_to_its_successor(bed: AnnouncerBed) -> None:
    one = delivery(component("store"))
    found = uniform(State.VERIFIED, (), {})
    async with bed.announcing():
        bed.announcer.report(one, found)
        await bed.shows_instances("0/0")
        before = await bed.status()
        bed.deposed = "claimed by another agent"
        with structlog.testing.capture_logs() as logs:
            bed.announcer.report(delivery(component("store"), sequence=2), found)
            await until(lambda: _has(logs))
        assert await bed.status() == before
        assert "claimed by another agent" in str(logs)


async def test_a_deleted_object_is_created_again_and_that_of_a_former_namespace_is_removed(
    bed: AnnouncerBed, client: Client
) -> None:
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "former-", "name": ""}}
    former = str((await client.create(NAMESPACES, manifest, manager="tests"))["metadata"]["name"])
    one = delivery(component("store"))
    both = AnnouncerBed(client, client, bed.namespace, former)
    async with both.announcing():
        both.report(one, State.VERIFIED)
        await both.shows_instances("1/1")
        await both.shows_instances("0/0", former)
    async with bed.announcing():
        bed.report(one, State.VERIFIED, State.VERIFIED)
        await bed.shows_instances("2/2")
        with pytest.raises(GovernorError) as caught:
            await client.get(RUNTIME_STATUSES, "r1", former)
        assert caught.value.kind is Kind.NOT_FOUND
        await client.delete(RUNTIME_STATUSES, "r1", bed.namespace)
        bed.report(one, State.VERIFIED, State.VERIFIED)
        await bed.shows_instances("2/2")


async def test_restarts_are_announced_once_for_each_content(bed: AnnouncerBed, client: Client) -> None:
    ref = await bed.create_workload()
    assert bed.workload is not None
    for name in DAPR:
        manifest = deployment(name)
        manifest["metadata"] |= {"namespace": bed.namespace, "labels": {"app": name}}
        await client.create(DEPLOYMENTS, manifest, manager="helm")
        status = {"status": {"availableReplicas": 1, "readyReplicas": 1, "replicas": 1}}
        await client.patch(DEPLOYMENTS, name, bed.namespace, status, manager="tests", subresource="status")
    needed = Plan((WorkloadPlan(ref, Action.RESTART_NEEDED, "restart needed: it is paused", digest="sha256:1"),))
    reason, images = "a Resiliency is loaded at the start only", "daprd changes from daprd:1 to daprd:2"
    restart = Plan((WorkloadPlan(ref, Action.RESTART, reason, digest="sha256:2", image_change=images),))
    restarter = Restarter(client, SystemClock(), permitted, dapr_namespace=bed.namespace, answers=1)

    async def step(planned: Plan) -> None:
        # Each resync has new restarts.
        restarts = Restarts(restarter, bed.announcer, bed.redactor, SystemClock(), 60.0)
        assert bed.workload is not None
        await restarts.step(planned, {ref: bed.workload}, await restarts.read_control_plane())

    async def revert() -> None:
        live = await client.get(DEPLOYMENTS, ref.name, ref.namespace)
        del live["spec"]["template"]["metadata"]["annotations"]
        await client.replace(DEPLOYMENTS, live, manager="user")

    async with bed.announcing():
        await step(needed)
        await step(needed)
        await bed.shows_events(ref.name, {"RestartNeeded": 1})
        in_waves = Plan(restart.workloads, waves=((ref,),))
        await step(in_waves)
        await step(in_waves)
        await bed.shows_events(ref.name, {"RestartNeeded": 1, "Restarting": 1})
        for _ in range(2):
            await revert()
            await step(in_waves)
        await step(in_waves)
        await bed.shows_events(ref.name, {"RestartNeeded": 1, "Restarting": 1, "RestartReverted": 1})
    texts = {each["reason"]: each["message"] for each in await events_of(client, ref.name, ref.namespace)}
    assert texts["Restarting"] == f"restarted for sha256:2: {reason}; {images}"
    assert "was reverted 2 times, by user" in texts["RestartReverted"]


class Scripted:
    """A platform with given results."""

    def __init__(self, found: Findings, error: GovernorError) -> None:
        self.workloads = {each.workload: each.instances.total for each in found.workloads}
        self._found = found
        self._error: GovernorError | None = error

    def refs(self, _: Delivery) -> tuple[ResourceRef, ...]:
        return tuple(each.resource for each in self._found.resources)

    def hold(self) -> None:
        return None

    def start(self) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def converge(self, _: Delivery, _received: Evidence, progress: Progress, _superseded: Superseded) -> Findings:
        error, self._error = self._error, None
        if error is not None:
            raise error
        progress(uniform(State.APPLIED, self.refs(_), self.workloads))
        return self._found

    async def find_drift(self, _: Delivery, *, after_failure: bool = False) -> DriftFindings | None:
        return DriftFindings({self.refs(_)[0]: "it was deleted"}, tuple(self.workloads), "api-server")

    async def release(self) -> None:
        raise NotImplementedError


class Results(Scripted):
    """A platform with a given result for each delivery."""

    def __init__(self, results: dict[int, Findings]) -> None:
        super().__init__(results[1], GovernorError(Kind.INTERNAL, "none", "none"))
        self._results = results

    async def converge(self, _: Delivery, _received: Evidence, progress: Progress, _superseded: Superseded) -> Findings:
        return self._results[_.sequence]


async def test_a_delivery_that_waits_is_shown_while_the_one_in_use_is_verified(bed: AnnouncerBed) -> None:
    """Otherwise both would be shown in turn."""
    await bed.create_workload()
    one, two = delivery(component("store")), delivery(component("store", host="b"), sequence=2, digest="sha256:2")
    window = Restraint(WAITING_FOR_WINDOW, "outside of the maintenance window", SystemClock().now())
    waits = msgspec.structs.replace(bed.found(two, State.RECEIVED), restraint=window)
    results = {2: waits, 1: bed.found(one, State.VERIFIED)}
    platform = AnnouncedPlatform(Results(results), bed.announcer)
    received = Evidence("agent", SystemClock().now(), "received")
    async with running(platform.run()):
        for each in (two, one, two, one):
            assert await platform.converge(each, received, lambda _: None, lambda: False) == results[each.sequence]
        status = await bed.shows_instances("0/1")
        assert (status["delivery"], condition(status)["reason"]) == (2, "WaitingForWindow")
        results[2] = bed.found(two, State.VERIFIED)
        await platform.converge(two, received, lambda _: None, lambda: False)
        assert (await bed.shows_instances("1/1"))["delivery"] == 2


async def test_a_platform_is_announced_and_its_errors_and_results_are_returned(bed: AnnouncerBed) -> None:
    await bed.create_workload()
    one = delivery(component("store"))
    found = bed.found(one, State.VERIFIED)
    error = GovernorError(Kind.DENIED, "denied", "the agent may not list pods")
    platform = AnnouncedPlatform(Scripted(found, error), bed.announcer)
    seen: list[Findings] = []
    received = Evidence("agent", SystemClock().now(), "received")
    async with running(platform.run()):
        with pytest.raises(GovernorError, match="may not list pods"):
            await platform.converge(one, received, seen.append, lambda: False)
        status = await bed.shows_instances("0/1")
        assert (condition(status)["reason"], await bed.events("orders")) == ("AgentFailed", {})
        assert "may not list pods" in condition(status)["message"]
        assert await platform.converge(one, received, seen.append, lambda: False) == found
        assert [each.verified for each in seen] == [False]
        await bed.shows_instances("1/1")
        drift = await platform.find_drift(one)
        assert drift is not None
        assert condition(await bed.shows_instances("0/1"))["reason"] == "Unhealthy"


async def test_the_agent_of_a_cluster_shows_what_it_applied(
    client: RecordingClient, namespace: str, api: ControlPlane
) -> None:
    await install_definition(client)
    settings = Settings(
        platform="kubernetes", kubeconfig=api.kubeconfig, namespaces=(namespace,), state_namespace=namespace
    )
    bed = AnnouncerBed(client, client, namespace)
    clock = SystemClock()
    received = Evidence("agent", clock.now(), "received")
    async with (
        kubernetes_home(settings, clock, Registry()) as home,
        home.open(Identity("r1", b"key"), lambda: None) as platform,
        running(platform.run()),
    ):
        found = await platform.converge(delivery(component("store")), received, lambda _: None, lambda: False)
        assert found.verified
        status = await bed.shows_instances("0/0")
        assert {each["type"]: each["status"] for each in status["conditions"]} == {
            "Applied": "True",
            "Verified": "True",
        }
        again = delivery(component("store", host="other:6379"), sequence=2, digest="sha256:2")
        assert (await platform.converge(again, received, lambda _: None, lambda: False)).verified
        await bed.shows_events("store", {"Verified": 1})


async def test_an_agent_that_cannot_claim_its_resources_starts_and_says_why(
    client: RecordingClient, namespace: str, api: ControlPlane
) -> None:
    inventory = {"metadata": {"name": "governor-agent-r1", "namespace": namespace}, "data": {"format": "v9"}}
    await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", **inventory}, manager="someone")
    settings = Settings(
        platform="kubernetes", kubeconfig=api.kubeconfig, namespaces=(namespace,), state_namespace=namespace
    )
    clock = SystemClock()
    received = Evidence("agent", clock.now(), "received")
    async with (
        kubernetes_home(settings, clock, Registry()) as home,
        home.open(Identity("r1", b"key"), lambda: None) as platform,
        running(platform.run()),
    ):
        with pytest.raises(GovernorError, match="it is not an inventory"):
            await platform.converge(delivery(component("store")), received, lambda _: None, lambda: False)
        await client.delete(CONFIG_MAPS, "governor-agent-r1", namespace)
        found = await platform.converge(delivery(component("store")), received, lambda _: None, lambda: False)
        assert found.verified


async def _has(logs: Iterable[object], count: int = 1) -> bool:
    return sum("cannot write the status" in str(each) for each in logs) >= count


async def _grant(client: Client, namespace: str) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": RULES}
    await client.create(ROLES, {**role, "metadata": {"name": "agent", "namespace": namespace}}, manager="tests")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "agent", "namespace": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": namespace}],
        "roleRef": {"apiGroup": ROLES.group, "kind": "Role", "name": "agent"},
    }
    await client.create(BINDINGS, binding, manager="tests")
