"""Server and agent from their charts in a real cluster with real Dapr: joined, changed, verified, restarted, killed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from governor import yamltext
from governor.domain.documents import API_VERSION
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr, helm
from testbed.cluster.releases import PORT, ServerRelease, agent_release
from testbed.cluster.workloads import (
    Manifest,
    OrderApp,
    RedisInCluster,
    apply,
    manifest,
    state_store,
    wait_rollout,
)
from testbed.proxies.tunnels import TunnelProxy
from testbed.waiting import until
from toolchain.errors import TestbedError
from toolchain.oci import LOCAL, Archive
from toolchain.repository import REPOSITORY

RUNTIME = "cluster-1"
RELEASE = agent_release(RUNTIME)
OBSERVER = "observer"


@pytest.fixture
async def server(
    cluster: Cluster, cluster_namespace: str, governor_image: Archive, tmp_path: Path
) -> AsyncIterator[ServerRelease]:
    """A server from its chart in a namespace of its own that admits only restricted pods, with its administrator."""
    await cluster.import_image(governor_image.file)
    fleet = f"{cluster_namespace}-fleet"
    await cluster.kubectl("create", "namespace", fleet)
    server = ServerRelease(cluster, fleet, tmp_path)
    await server.restrict()
    await server.create_volume()
    await server.install_for_agents()
    yield server
    await server.uninstall_agent(RUNTIME, fleet)
    await server.uninstall()
    await cluster.kubectl("delete", "--wait=false", f"namespace/{fleet}", f"persistentvolume/{fleet}")


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[TunnelProxy]:
    """A forward proxy on this machine, at the address at which pods reach it."""
    async with TunnelProxy(host=cluster.facts["machine"]) as proxy:
        yield proxy


RESILIENCY = {
    "apiVersion": "dapr.io/v1alpha1",
    "kind": "Resiliency",
    "metadata": {"name": "limits"},
    "spec": {"policies": {"timeouts": {"short": "3s"}}, "targets": {}},
}
"""A resource that sidecars load only when they start."""
UNUSED = {
    "apiVersion": "dapr.io/v1alpha1",
    "kind": "Component",
    "metadata": {"name": "unused"},
    "spec": {"type": "state.in-memory", "version": "v1", "metadata": []},
    "scopes": ["none"],
}
"""A resource that no sidecar loads, so that its repair concerns none."""


def documents(namespace: str, redis: RedisInCluster, *more: Manifest) -> list[Manifest]:
    items = [{"name": "redisHost", "value": redis.address}, {"name": "redisPassword", "value": redis.password}]
    spec = {"type": "state.redis", "version": "v1", "metadata": items}
    store = manifest("dapr.io/v1alpha1", "Component", "statestore", spec=spec)
    profile = {"selector": {"runtime": RUNTIME}, "resources": [store, *more]}
    runtime = {"platform": "kubernetes", "namespaces": [namespace]}
    return [
        manifest(API_VERSION, "Runtime", RUNTIME, spec=runtime),
        manifest(API_VERSION, "Profile", "orders", spec=profile),
    ]


async def test_an_agent_joins_from_its_chart_and_verifies_a_change_with_its_own_permissions(
    dapr: Dapr, cluster_namespace: str, server: ServerRelease, proxy: TunnelProxy
) -> None:
    cluster = dapr.cluster
    redis = await RedisInCluster(cluster, cluster_namespace, "store").start()
    orders = await OrderApp(cluster, cluster_namespace, "orders").start()

    check = ("doctor", f"--kubeconfig={cluster.kubeconfig}", f"--namespace={cluster_namespace}")
    checked = await server.governor(*check, f"--agent-namespace={server.namespace}")
    assert checked.splitlines()[-1] == "no problems found", checked

    runtime, profile = (yamltext.dump(each) for each in documents(cluster_namespace, redis))
    (server.home / "runtime.yaml").write_text(runtime)
    (server.home / "profile.yaml").write_text(profile)
    await server.governor("apply", "-f", "runtime.yaml", "--no-wait")
    option = f" --wait --set=proxy.url={proxy.url}"
    command = await server.install_agent(RUNTIME, server.namespace, lambda each: each.replace(" --wait", option, 1))
    assert command.startswith(f"helm install {RELEASE} ")
    assert list(server.home.glob("*.join-token")) == []
    assert set(proxy.targets) == {f"{await server.address()}:{PORT}"}

    await server.governor("apply", "-f", "profile.yaml", "--wait-timeout=240s")  # succeeds when the change is verified
    await orders.place_order("by the application")
    assert await redis.execute("HGET", "orders||order", "data") == '{"orderId":"by the application"}'
    verified = '{.status.conditions[?(@.type=="Verified")].status}'
    where = ("runtimestatus", RUNTIME, f"--namespace={cluster_namespace}")
    await until(lambda: prints(cluster, "True", "get", "--ignore-not-found", *where, f"--output=jsonpath={verified}"))
    account = f"system:serviceaccount:{server.namespace}:{RELEASE}"
    assert await allowed(cluster, account, "list", "secrets", cluster_namespace)
    assert not await allowed(cluster, account, "list", "secrets", "default")

    # A broken change ends in a throw-away pod, which Dapr's injector accepts from the agent's ServiceAccount.
    before = await identities(orders)
    (server.home / "broken.yaml").write_text(profile.replace(redis.address, "nowhere:6379"))
    with pytest.raises(TestbedError, match=r"process component statestore error: .*nowhere:6379"):
        await server.governor("apply", "-f", "broken.yaml", "--wait-timeout=240s")
    assert "preflight orders-preflight-" in await server.governor("describe", "runtime", RUNTIME)
    assert await identities(orders) == before
    await orders.place_order("after the broken change")
    await until(lambda: is_clean(cluster, cluster_namespace))
    await server.governor("apply", "-f", "profile.yaml", "--wait-timeout=240s")

    _, profile = (yamltext.dump(each) for each in documents(cluster_namespace, redis, RESILIENCY, UNUSED))
    (server.home / "profile.yaml").write_text(profile)
    # Its identity is in Secrets of its own: neither the join token nor a pod is needed any more.
    await server.kubectl("delete", "secret", f"{RELEASE}-join")
    await lose_agents_and_server_during_a_restart(server, orders)

    leader = await leader_of(server)
    await server.kubectl("delete", "pod", leader)
    await until(lambda: has_other_leader(server, leader), within_s=120.0)
    await wait_rollout(cluster, server.namespace, RELEASE)
    await until(lambda: is_connected(server), within_s=120.0)


async def lose_agents_and_server_during_a_restart(server: ServerRelease, orders: OrderApp) -> None:
    """Change the profile, whose restart new pods of the agent finish, while server and kubelet are away."""
    cluster, where = server.cluster, f"--namespace={orders.namespace}"
    assert await generations(orders) == 1
    await server.governor("apply", "-f", "profile.yaml", "--no-wait")
    await until(lambda: has_generations(orders, 2))
    leader = await leader_of(server)
    await server.kubectl("scale", "statefulset/governor-server", "--replicas=0")
    everyone = f"--selector=app.kubernetes.io/instance={RELEASE}"
    await server.kubectl("delete", "pod", everyone, "--grace-period=0", "--force")
    await cluster.restart_kubelet()
    await orders.wait_ready()
    pods = containers(await orders.pods())

    await cluster.kubectl("patch", "component", "unused", where, "--type=merge", '--patch={"scopes": ["nobody"]}')
    repaired = "--for=jsonpath={.scopes[*]}=none"
    await cluster.kubectl("wait", "component", "unused", where, repaired, "--timeout=120s")
    assert await leader_of(server) != leader

    await server.kubectl("scale", "statefulset/governor-server", "--replicas=1")
    await server.wait_reachable()
    await until(lambda: is_connected(server), within_s=120.0)
    assert containers(await orders.pods()) == pods, "the same containers, none of which was restarted"
    assert await generations(orders) == 2


async def generations(orders: OrderApp) -> int:
    """Return how many versions of its pods the Deployment has had."""
    selected = (f"--namespace={orders.namespace}", f"--selector=app={orders.name}", "--output=name")
    return len((await orders.cluster.kubectl("get", "replicasets", *selected)).split())


async def has_generations(orders: OrderApp, number: int) -> bool:
    return await generations(orders) == number


async def leader_of(server: ServerRelease) -> str:
    """Return the pod of the agent that holds the Lease."""
    holder = await server.kubectl("get", "lease", RELEASE, "--output=jsonpath={.spec.holderIdentity}")
    return holder.rpartition("_")[0]


async def has_other_leader(server: ServerRelease, pod: str) -> bool:
    return await leader_of(server) not in ("", pod)


def containers(pods: list[Manifest]) -> dict[str, int]:
    """Return the containers of some pods with the numbers of their restarts."""
    return {each["containerID"]: each["restartCount"] for pod in pods for each in pod["status"]["containerStatuses"]}


async def prints(cluster: Cluster, text: str, *command: str) -> bool:
    return await cluster.kubectl(*command) == text


async def identities(app: OrderApp) -> dict[str, int]:
    """Return how often the containers of each pod were restarted, by uid."""
    pods = await app.pods()
    return {
        each["metadata"]["uid"]: sum(one["restartCount"] for one in each["status"]["containerStatuses"])
        for each in pods
    }


async def is_clean(cluster: Cluster, namespace: str) -> bool:
    """Return whether nothing of a preflight is left."""
    kinds = "jobs,pods,secrets,components,configurations"
    where = ("get", kinds, f"--namespace={namespace}", "--selector=runtime-governor.dev/preflight")
    return await cluster.kubectl(*where, "--output=name") == ""


async def allowed(cluster: Cluster, account: str, verb: str, resource: str, namespace: str) -> bool:
    attributes = {"verb": verb, "resource": resource, "namespace": namespace}
    spec = {"user": account, "resourceAttributes": attributes}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await cluster.kubectl("create", "-f", "-", "--output=json", stdin=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])


async def is_connected(server: ServerRelease) -> bool:
    view = json.loads(await server.governor("get", "runtimes", RUNTIME, "--output=json"))
    conditions = {each["type"]: each["status"] for each in view["conditions"]}
    return (conditions["Connected"], conditions["Verified"]) == ("True", "True")


async def test_an_observer_from_its_chart_proves_what_kubectl_applied_and_needs_no_server(
    dapr: Dapr, cluster_namespace: str, governor_image: Archive
) -> None:
    cluster = dapr.cluster
    await cluster.import_image(governor_image.file)
    redis = await RedisInCluster(cluster, cluster_namespace, "store").start()
    await apply(cluster, cluster_namespace, state_store(redis))
    await OrderApp(cluster, cluster_namespace, "orders").start()
    values = (f"image.repository={LOCAL}/governor", f"namespaces={{{cluster_namespace}}}", "observe.enabled=true")
    release = (OBSERVER, str(REPOSITORY / "charts" / "governor-agent"), f"--namespace={cluster_namespace}")
    await helm(cluster, "install", *release, *(f"--set={each}" for each in values), "--wait", "--timeout=120s")
    selected = (f"--namespace={cluster_namespace}", f"--selector=app.kubernetes.io/instance={OBSERVER}", "--tail=-1")

    async def is_proven() -> bool:
        log = await cluster.kubectl("logs", *selected)
        [*_, last] = [each for each in log.splitlines() if "/statestore" in each] or [""]
        return "orders" in last and "verified" in last.split()

    await until(is_proven, within_s=120.0)
    assert "patch" not in await cluster.kubectl("get", "roles", f"--namespace={cluster_namespace}", "--output=yaml")
    await helm(cluster, "uninstall", OBSERVER, f"--namespace={cluster_namespace}")
