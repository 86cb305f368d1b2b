"""Restarts beside real controllers; no pod runs, so the tests set the status of pods themselves.

The tests share the control plane with controllers of this directory; each has a namespace.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml

from governor.agent.platforms.kubernetes.restarts.control_plane import (
    SERVICES,
    Component,
    SecretKey,
    Service,
    dapr_obstacle,
)
from governor.agent.platforms.kubernetes.restarts.control_plane import ControlPlane as DaprControlPlane
from governor.agent.platforms.kubernetes.restarts.decision import budget_obstacle
from governor.agent.platforms.kubernetes.restarts.records import RECORD, Record, Template
from governor.agent.platforms.kubernetes.restarts.restarter import MANAGER, Restarted, Restarter, template_of
from governor.agent.platforms.kubernetes.restarts.roll import left_behind
from governor.agent.platforms.kubernetes.workloads.views import RESTART
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Update, Workload
from governor.domain.reports import WorkloadRef
from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request, Transport
from governor.kube.errors import ApiError, Status
from governor.kube.objects import ApiResource, Object
from governor.process.clock import SystemClock
from testbed.builds.dapr import VERSION, services
from testbed.cluster.cluster import run
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.agent.bed import permitted
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.bed import account_of, admin_of
from toolchain import cache
from toolchain.helm import HELM

pytestmark = pytest.mark.asyncio(loop_scope="session")

LABELS = {"app": "web"}
CLOCK = SystemClock()
HEALTHY = DaprControlPlane(tuple(Service(name, "dapr-system", 1, 1) for name in SERVICES))
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
NAMESPACES = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
SECRETS = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
PODS = ApiResource("", "v1", "Pod", "pods", namespaced=True)
DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", namespaced=True)
REPLICA_SETS = ApiResource("apps", "v1", "ReplicaSet", "replicasets", namespaced=True)
STATEFUL_SETS = ApiResource("apps", "v1", "StatefulSet", "statefulsets", namespaced=True)
DAEMON_SETS = ApiResource("apps", "v1", "DaemonSet", "daemonsets", namespaced=True)
BUDGETS = ApiResource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)
COMPONENTS = ApiResource("dapr.io", "v1alpha1", "Component", "components", namespaced=True)
ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "Role", "roles", namespaced=True)
BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True)


@pytest_asyncio.fixture(loop_scope="session")
async def client(plane: ControlPlane, transport: Transport) -> Client:
    """An administrator's client."""
    return Client(transport, admin_of(plane))


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(client: Client) -> str:
    """The name of a new namespace in which pods can be created."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-", "name": ""}}
    name = str((await client.create(NAMESPACES, manifest, manager="tests"))["metadata"]["name"])

    async def has_account() -> bool:
        return bool([each async for each in client.list(ACCOUNTS, name)])

    await until(has_account)
    return name


@pytest.fixture
def restarter(client: Client, namespace: str) -> Restarter:
    """The restarter, which searches for Dapr in the test's own namespace."""
    return Restarter(client, CLOCK, permitted, dapr_namespace=namespace)


def _chart() -> Path:
    return cache.provide(services(VERSION)).parent / "chart"


async def create(
    client: Client, resource: ApiResource, namespace: str, content: Object, name: str = "web", manager: str = "tests"
) -> WorkloadRef:
    metadata = {"name": name, "namespace": namespace}
    manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}
    await client.create(resource, manifest, manager=manager)
    return WorkloadRef(namespace, resource.kind, name)


def workload(**spec: Any) -> Object:
    container = {"name": "web", "image": "example.com/web:1"}
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    return {"spec": {"selector": {"matchLabels": LABELS}, "template": template, **spec}}


def annotation(manifest: Object) -> str:
    metadata = manifest["spec"].get("template", manifest)["metadata"]
    return str(metadata.get("annotations", {}).get(RESTART, ""))


async def template(client: Client, ref: WorkloadRef) -> Template:
    return template_of(await client.get(DEPLOYMENTS, ref.name, ref.namespace))


async def replicas(client: Client, namespace: str) -> dict[str, int]:
    """Return the desired replicas of each ReplicaSet, by the annotation of its template."""
    found = [each async for each in client.list(REPLICA_SETS, namespace)]
    counted = {annotation(each): each["spec"]["replicas"] for each in found}
    assert len(counted) == len(found), "two ReplicaSets of one template"
    return counted


async def reach(client: Client, namespace: str, expected: dict[str, int]) -> None:
    """Wait until the ReplicaSets are as expected, and their pods created or deleted: one kept would be used again."""

    async def reached() -> bool:
        found = [each async for each in client.list(REPLICA_SETS, namespace)]
        is_done = all(each["status"]["replicas"] == each["spec"]["replicas"] for each in found)
        return is_done and await replicas(client, namespace) == expected

    await until(reached)


async def make_ready(client: Client, namespace: str, count: int) -> list[Object]:
    """Set the status of the namespace's pods once there are ``count``, and return them."""

    async def created() -> list[Object]:
        found = [each async for each in client.list(PODS, namespace)]
        return found if len(found) == count else []

    pods = await until(created)
    await set_ready(client, pods)
    return pods


async def set_ready(client: Client, pods: Iterable[Object]) -> None:
    """Set the status of pods; a rollout may delete an old one meanwhile."""
    for pod in pods:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        try:
            await client.patch(PODS, name, namespace, {"status": RUNNING}, manager="tests", subresource="status")
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise


def pod_of(manifest: Object, owner: WorkloadRef) -> Pod:
    metadata = manifest["metadata"]
    now = datetime.now(UTC)
    return Pod(metadata["namespace"], metadata["name"], metadata["uid"], now, "web", owner, ready=True)


class TestAnnotation:
    async def test_a_restart_makes_exactly_one_new_replica_set(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload())
        await reach(client, namespace, {"": 1})
        assert await restarter.restart(ref, "sha256:1") == Restarted(written=True)
        await reach(client, namespace, {"": 1, "sha256:1": 1})
        before = await client.get(DEPLOYMENTS, "web", namespace)

        assert await restarter.restart(ref, "sha256:1") == Restarted(written=False)
        after = await client.get(DEPLOYMENTS, "web", namespace)
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        assert await replicas(client, namespace) == {"": 1, "sha256:1": 1}
        [new] = [each async for each in client.list(PODS, namespace) if annotation(each)]
        assert annotation(new) == "sha256:1"

    async def test_taking_it_back_returns_to_the_old_replica_set(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload())
        await reach(client, namespace, {"": 1})
        await restarter.restart(ref, "sha256:1")
        await reach(client, namespace, {"": 1, "sha256:1": 1})
        await make_ready(client, namespace, 2)
        await reach(client, namespace, {"": 0, "sha256:1": 1})
        await make_ready(client, namespace, 1)  # the old pod is gone: the next one that appears is to become ready

        record = await restarter.take_back(ref, "sha256:1", "no sidecar", "dapr-1")
        assert record is not None
        await make_ready(client, namespace, 2)
        await reach(client, namespace, {"": 1, "sha256:1": 0})
        assert (await template(client, ref)).record == record
        assert await restarter.take_back(ref, "sha256:1", "no sidecar") is None, "a second time"

        again = await Restarter(client, CLOCK, permitted).restart(ref, "sha256:1", "dapr-1")
        assert again == Restarted(written=False, deferral=record.text)
        assert (await restarter.restart(ref, "sha256:2", "dapr-1")).written, "another digest"

    async def test_the_value_before_is_restored_by_an_agent_that_was_killed_meanwhile(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload(replicas=0))
        await restarter.restart(ref, "sha256:1")
        await restarter.restart(ref, "sha256:2")
        restarted = Restarter(client, CLOCK, permitted)
        assert (await template(client, ref)).record == Record("sha256:2", "sha256:1")
        assert await restarted.take_back(ref, "sha256:1", "late") is None, "another restart's annotation"
        assert await restarted.take_back(ref, "sha256:2", "late")
        assert (await template(client, ref)).digest == "sha256:1"

    async def test_without_its_record_the_annotation_is_removed(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload(replicas=0))
        await restarter.restart(ref, "sha256:1")
        await client.patch(DEPLOYMENTS, "web", namespace, {"metadata": {"annotations": {RECORD: "{"}}}, manager="tests")
        record = await restarter.take_back(ref, "sha256:1", "late")
        assert record is not None
        assert await template(client, ref) == Template("", record, ("tests",))
        assert (record.previous, record.failures) == ("", 1)

    async def test_a_workload_that_is_gone_has_nothing_to_take_back(self, namespace: str, restarter: Restarter) -> None:
        ref = WorkloadRef(namespace, "Deployment", "gone")
        assert await restarter.take_back(ref, "sha256:1", "late") is None
        with pytest.raises(GovernorError) as caught:
            await restarter.restart(ref, "sha256:1")
        assert caught.value.kind is Kind.NOT_FOUND

    async def test_only_the_agents_two_annotations_are_written(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        for resource, spec in ((STATEFUL_SETS, {"serviceName": "web"}), (DAEMON_SETS, {})):
            ref = await create(client, resource, namespace, workload(**spec))
            assert (await restarter.restart(ref, "sha256:1")).written
            live = await client.get(resource, "web", namespace)
            assert annotation(live) == "sha256:1"
            [own] = [each for each in live["metadata"]["managedFields"] if each["manager"] == MANAGER]
            template: Object = {"f:metadata": {"f:annotations": {".": {}, f"f:{RESTART}": {}}}}
            assert own["fieldsV1"]["f:spec"] == {"f:template": template}
            assert set(own["fieldsV1"]["f:metadata"]["f:annotations"]) <= {".", f"f:{RECORD}"}


class _Raced(Client):
    """A client beside which another one changes a workload after each read, so many times."""

    __slots__ = ("races",)

    def __init__(self, transport: Transport, plane: ControlPlane, races: int) -> None:
        super().__init__(transport, admin_of(plane))
        self.races = races

    async def get(
        self, resource: ApiResource, name: str, namespace: str = "", *, metadata_only: bool = False
    ) -> Object:
        found = await super().get(resource, name, namespace, metadata_only=metadata_only)
        if self.races:
            self.races -= 1
            other = {"metadata": {"labels": {"race": str(self.races)}}}
            await self.patch(resource, name, namespace, other, manager="other")
        return found


class TestConflicts:
    async def test_a_concurrent_change_is_not_overwritten(
        self, client: Client, namespace: str, transport: Transport, plane: ControlPlane
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload(replicas=0))
        raced = _Raced(transport, plane, races=2)
        assert (await Restarter(raced, CLOCK, permitted).restart(ref, "sha256:1")).written
        live = await client.get(DEPLOYMENTS, "web", namespace)
        assert (annotation(live), live["metadata"]["labels"]) == ("sha256:1", {"race": "0"})

    async def test_a_digest_that_another_replica_writes_meanwhile_is_not_written_twice(
        self, client: Client, namespace: str
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload(replicas=0))
        replicas = [Restarter(client, CLOCK, permitted) for _ in range(4)]
        results = await asyncio.gather(*(each.restart(ref, "sha256:1") for each in replicas))
        assert sorted(each.written for each in results) == [False, False, False, True]
        assert (await client.get(DEPLOYMENTS, "web", namespace))["metadata"]["generation"] == 2

    async def test_endless_conflicts_are_an_error(
        self, client: Client, namespace: str, transport: Transport, plane: ControlPlane
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload(replicas=0))
        with pytest.raises(GovernorError) as caught:
            await Restarter(_Raced(transport, plane, races=99), CLOCK, permitted).restart(ref, "sha256:1")
        assert caught.value.kind is Kind.CONFLICT
        assert annotation(await client.get(DEPLOYMENTS, "web", namespace)) == ""


async def test_without_a_permit_nothing_is_written(client: Client, namespace: str) -> None:
    async def deny() -> None:
        raise GovernorError(Kind.PRECONDITION, "claim-lost", "claimed by another agent")

    ref = await create(client, REPLICA_SETS, namespace, workload(replicas=1))
    [pod] = [pod_of(each, ref) for each in await make_ready(client, namespace, 1)]
    await Restarter(client, CLOCK, permitted).restart(ref, "sha256:1")
    denied = Restarter(client, CLOCK, deny)
    for call in (denied.restart(ref, "sha256:2"), denied.take_back(ref, "sha256:1", "late"), denied.evict(pod)):
        with pytest.raises(GovernorError, match="claimed by another agent"):
            await call
    assert annotation(await client.get(REPLICA_SETS, "web", namespace)) == "sha256:1"
    assert [each["metadata"]["uid"] async for each in client.list(PODS, namespace)] == [pod.uid]


class TestReverts:
    async def test_an_operator_is_answered_three_times_and_then_named(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload(replicas=0), manager="shop-operator")
        for _ in range(4):
            assert await restarter.restart(ref, "sha256:1") == Restarted(written=True)
            live = await client.get(DEPLOYMENTS, "web", namespace)
            del live["spec"]["template"]["metadata"]["annotations"], live["metadata"]["resourceVersion"]
            await client.replace(DEPLOYMENTS, live, manager="shop-operator")
        left = await restarter.restart(ref, "sha256:1")
        assert not left.written
        assert "reverted 4 times, by shop-operator" in left.warning
        assert (await restarter.restart(ref, "sha256:2")).written, "another digest"

    async def test_the_manager_of_another_value_is_named(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload(replicas=0))
        await restarter.restart(ref, "sha256:1")
        change = {"spec": {"template": {"metadata": {"annotations": {RESTART: "mine"}}}}}
        await client.patch(DEPLOYMENTS, "web", namespace, change, manager="gitops")
        assert (await template(client, ref)).managers == ("gitops",)


async def test_a_replica_set_is_restarted_by_evictions_within_its_budget(
    client: Client, namespace: str, restarter: Restarter
) -> None:
    ref = await create(client, REPLICA_SETS, namespace, workload(replicas=2))
    selector = {"matchLabels": LABELS}
    await create(client, BUDGETS, namespace, {"spec": {"minAvailable": 2, "selector": selector}})
    pods = [pod_of(each, ref) for each in await make_ready(client, namespace, 2)]
    observed = Workload(ref, "apps/v1", Update.NONE, pods=tuple(pods), desired=2, labels=LABELS)
    await restarter.restart(ref, "sha256:1")

    async def obstacle() -> str:
        return budget_obstacle(observed, await restarter.budgets(namespace))

    async def is_computed() -> bool:
        return "2 healthy pods, 2 required" in await obstacle()

    await until(is_computed)
    assert "The disruption budget web needs 2 healthy pods and has 2 currently" in await restarter.evict(pods[0])
    assert len([each async for each in client.list(PODS, namespace)]) == 2

    await client.patch(BUDGETS, "web", namespace, {"spec": {"minAvailable": 1}}, manager="tests")

    async def is_allowed() -> bool:
        return not await obstacle()

    await until(is_allowed)
    assert await restarter.evict(pods[0]) == ""
    new = [each for each in await make_ready(client, namespace, 2) if each["metadata"]["name"] != pods[1].name]
    assert [annotation(each) for each in new] == ["sha256:1"]
    assert await restarter.evict(pods[0]) == "", "a pod that is gone"


async def test_a_busy_api_server_is_no_disruption_budget(
    namespace: str, transport: Transport, plane: ControlPlane
) -> None:
    busy = RecordingClient(transport, admin_of(plane))

    async def intercept(request: Request, _send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        status = Status(message="too many requests, please try again later", reason="TooManyRequests", code=429)
        raise ApiError(str(request), 429, status, 1.0)

    busy.intercept = intercept
    pod = Pod(namespace, "web-0", "1", datetime.now(UTC), "web", WorkloadRef(namespace, "ReplicaSet", "web"))
    with pytest.raises(ApiError, match="please try again later; retry after 1 s"):
        await Restarter(busy, CLOCK, permitted).evict(pod)


async def test_a_pod_that_a_stateful_set_leaves_behind_returns_to_the_old_template(
    client: Client, namespace: str, restarter: Restarter
) -> None:
    ref = await create(client, STATEFUL_SETS, namespace, workload(serviceName="web"))
    await make_ready(client, namespace, 1)
    await restarter.restart(ref, "sha256:1")

    async def with_annotation(value: str) -> list[Object]:
        return [each async for each in client.list(PODS, namespace) if annotation(each) == value]

    [broken] = await until(lambda: with_annotation("sha256:1"))
    assert await restarter.take_back(ref, "sha256:1", "late")
    pod = msgspec.structs.replace(pod_of(broken, ref), ready=False, restart_digest="sha256:1")
    observed = Workload(ref, "apps/v1", Update.ROLLING, pods=(pod,), desired=1)
    assert left_behind(observed, "sha256:1") == pod
    assert await restarter.evict(pod) == ""
    [healed] = await until(lambda: with_annotation(""))
    assert healed["metadata"]["name"] == pod.name


class TestPermissions:
    async def test_a_permission_that_was_taken_away_is_named(
        self, client: Client, namespace: str, transport: Transport, plane: ControlPlane
    ) -> None:
        ref = await create(client, DEPLOYMENTS, namespace, workload(replicas=0))
        rules = [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]}]
        await create(client, ROLES, namespace, {"rules": rules}, "agent")
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
        role = {"apiGroup": ROLES.group, "kind": "Role", "name": "agent"}
        await create(client, BINDINGS, namespace, {"subjects": [subject], "roleRef": role}, "agent")
        token = await plane.request_token(namespace, "default")
        restarter = Restarter(Client(transport, account_of(plane, token)), CLOCK, permitted)

        async def may_get() -> bool:
            try:
                return bool(await template(client, ref))
            except GovernorError:
                return False

        await until(may_get)  # the authorizer learns of the role a moment later
        pod = Pod(namespace, "web-0", "1", datetime.now(UTC), "web", ref)
        needs_secret = Component("store", secrets=(SecretKey("redis", "password"),))
        for call, permission in (
            (restarter.restart(ref, "sha256:1"), f"patch deployments.apps in namespace {namespace}"),
            (restarter.evict(pod), f"create pods/eviction in namespace {namespace}"),
            (restarter.budgets(namespace), f"list poddisruptionbudgets.policy in namespace {namespace}"),
            (restarter.components(namespace), f"list components.dapr.io in namespace {namespace}"),
            (restarter.secret_keys(namespace, [needs_secret]), f"get secrets in namespace {namespace}"),
            (restarter.dapr_control_plane(), "list deployments.apps in all namespaces"),
        ):
            with pytest.raises(GovernorError) as caught:
                await call
            assert caught.value.kind is Kind.DENIED
            assert f"the agent may not {permission}; grant" in caught.value.message


class TestDapr:
    async def test_a_dangling_secret_is_found_and_its_values_are_not_read(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        items = [
            {"name": "user", "value": "inline"},
            {"name": "password", "secretKeyRef": {"name": "redis", "key": "password"}},
        ]
        spec = {"type": "state.redis", "version": "v1", "metadata": items}
        await create(client, COMPONENTS, namespace, {"spec": spec, "scopes": ["web"]}, "store")
        await create(client, COMPONENTS, namespace, {"spec": spec, "auth": {"secretStore": "vault"}}, "other")

        async def obstacle(app_id: str = "web") -> str:
            components = await restarter.components(namespace)
            keys = await restarter.secret_keys(namespace, components)
            return dapr_obstacle(HEALTHY, components, keys, app_id=app_id)

        assert "Component store refers to key password of Secret redis, which does not exist" in await obstacle()
        assert await obstacle("unscoped") == ""
        await create(client, SECRETS, namespace, {"stringData": {"token": "hidden"}}, "redis")
        assert "which has no such key" in await obstacle()
        await client.patch(SECRETS, "redis", namespace, {"stringData": {"password": "hidden"}}, manager="tests")
        assert await obstacle() == ""
        keys = await restarter.secret_keys(namespace, await restarter.components(namespace))
        assert keys == {"redis": frozenset({"token", "password"})}

    async def test_the_control_plane_of_daprs_chart_is_found(
        self, client: Client, namespace: str, restarter: Restarter
    ) -> None:
        async def obstacle() -> str:
            return dapr_obstacle(await restarter.dapr_control_plane(), (), {}, app_id="web", hosts_actors=True)

        assert "dapr-operator is not installed" in await obstacle()
        watchdog = "--set=dapr_operator.watchInterval=2m"
        chart = await run(
            [str(cache.provide(HELM)), "template", "dapr", str(_chart()), f"--namespace={namespace}", watchdog]
        )
        kinds = {each.kind: each for each in (ACCOUNTS, DEPLOYMENTS, STATEFUL_SETS)}
        manifests = [each for each in yaml.safe_load_all(chart) if each and each["kind"] in kinds]
        for each in sorted(manifests, key=lambda manifest: list(kinds).index(manifest["kind"])):
            each["metadata"]["namespace"] = namespace
            await client.create(kinds[each["kind"]], each, manager="helm")
        assert "dapr-operator is not available (0 of 1 replicas" in await obstacle()

        async def is_fit() -> bool:
            await set_ready(client, [each async for each in client.list(PODS, namespace)])
            return not await obstacle()

        await until(is_fit, every_s=0.1)
        found = await restarter.dapr_control_plane()
        assert found.sidecar_image.endswith("/daprd:edge"), "the tag of a chart that is not packaged"
        assert found.watch_interval("any") == "2m"
        injector = {"spec": {"replicas": 0}}
        await client.patch(DEPLOYMENTS, "dapr-sidecar-injector", namespace, injector, manager="tests")

        async def is_down() -> bool:
            return "dapr-sidecar-injector is not available (0 of 0 replicas" in await obstacle()

        await until(is_down)
