"""A real kubelet behind the runtime proxy: everything works as directly, and plugins change what containers get."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from testbed.cluster.cleanup import cgroups
from testbed.cluster.cluster import Cluster
from testbed.cluster.workloads import apply
from testbed.cri.control import Json
from testbed.cri.peers import HookPlugin
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.waiting import until
from tests.e2e.cluster.node_script import EXPECTED, NodeScript, node_registry, sleeper

HOOKS = [
    "PreRunPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PreUpdateContainerResources",
    "PostStopContainer",
    "PostStopPodSandbox",
]
UPGRADES_A_ROUND = 4
"""In five rounds there are twenty upgrades."""
SHARES = 333
UPDATED_SHARES = 444
LIKE_KOORDLET = (
    {"method": "PreRunPodSandboxHook", "echo": True, "answer": {"annotations": {"by": "plugin"}}},
    {"method": "PreCreateContainerHook", "echo": True, "answer": {"container_resources": {"cpu_shares": SHARES}}},
    {
        "method": "PreUpdateContainerResourcesHook",
        "echo": True,
        "answer": {"container_resources": {"cpu_shares": UPDATED_SHARES}},
    },
    {"echo": True},
)
"""As koordlet does, the plugin returns its whole request with its own values."""


@asynccontextmanager
async def proxied(cluster: Cluster, directory: Path) -> AsyncIterator[RuntimeProxy]:
    """Run a proxy between kubelet and containerd within the context."""
    proxy = RuntimeProxy(directory / "p", Path(cluster.facts["socket"]))
    async with proxy, cluster.runtime_at(proxy.socket):
        yield proxy


async def last_transition(cluster: Cluster) -> Json:
    """Return when the node became what it is, which must be Ready."""
    node = json.loads(await cluster.kubectl("get", "node", "node", "--output=json"))
    (ready,) = (each for each in node["status"]["conditions"] if each["type"] == "Ready")
    assert ready["status"] == "True", ready
    return {"since": ready["lastTransitionTime"]}


@pytest.mark.parametrize("route", ["proxied", pytest.param("direct", marks=pytest.mark.soak)])
async def test_kubelet_and_all_it_does_with_pods(
    route: str, cluster: Cluster, cluster_namespace: str, short_directory: Path
) -> None:
    script = NodeScript(cluster, cluster_namespace)
    before = await last_transition(cluster)
    async with node_registry(cluster, short_directory / "r") as image:
        if route == "direct":
            seen = await script.run(image)
        else:
            async with proxied(cluster, short_directory) as proxy:
                seen = await script.run(image)
                assert await proxy.metric('governor_proxy_connections{mode="copied"}') > 0

    assert seen == EXPECTED
    assert await last_transition(cluster) == before


class PodLoad:
    """Pods that are created and deleted all the time, beside others that stay."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = f"--namespace={namespace}"
        self._names = (cluster, namespace)
        self._stopped = asyncio.Event()
        self.rounds = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create and delete pods within the context; every one of them must become ready and must go."""
        task = asyncio.create_task(self._work())
        try:
            yield
        finally:
            self._stopped.set()
            await task

    async def next_round(self) -> None:
        """Wait until pods that were created from now on have been ready and are gone."""
        target = self.rounds + 2

        async def is_done() -> bool:
            return self.rounds >= target

        await until(is_done, within_s=300)

    async def _work(self) -> None:
        while not self._stopped.is_set():
            names = [f"load-{self.rounds}-{number}" for number in range(3)]
            pods = [f"pod/{name}" for name in names]
            await apply(*self._names, *map(sleeper, names))
            wait = (self._namespace, "--timeout=120s")
            await self._cluster.kubectl("wait", "--for=condition=Ready", *wait, *pods)
            await self._cluster.kubectl("delete", *wait, *pods)
            self.rounds += 1


@pytest.mark.parametrize(
    ("route", "rounds"),
    [
        ("proxied", 5),
        ("direct", 5),
    ],
)
@pytest.mark.soak
async def test_no_pod_is_lost_when_the_proxy_or_the_runtime_is_killed_stopped_or_upgraded(
    route: str, rounds: int, cluster: Cluster, cluster_namespace: str, short_directory: Path
) -> None:
    script, load = NodeScript(cluster, cluster_namespace), PodLoad(cluster, cluster_namespace)
    steady = ["steady-0", "steady-1"]
    before = await last_transition(cluster)
    await apply(cluster, cluster_namespace, *map(sleeper, steady))
    for name in steady:
        await cluster.kubectl(
            "wait", "--for=condition=Ready", f"pod/{name}", f"--namespace={cluster_namespace}", "--timeout=120s"
        )
    containers = [await container_id_of(cluster, cluster_namespace, name) for name in steady]
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(cluster, short_directory)) if route == "proxied" else None
        async with load.running():
            await load.next_round()
            for _ in range(rounds):
                if proxy is not None:
                    await proxy.kill()
                    await proxy.start()
                    await load.next_round()
                    await proxy.stop()
                    await proxy.start()
                    await load.next_round()
                    for _ in range(UPGRADES_A_ROUND):
                        await proxy.upgrade()
                        await load.next_round()
                await cluster.restart("containerd")
                await load.next_round()

    assert await script.restarts(*steady) == {"steady-0/main": 0, "steady-1/main": 0}
    assert [await container_id_of(cluster, cluster_namespace, name) for name in steady] == containers
    assert await last_transition(cluster) == before


def shares_of(container_id: str) -> int:
    """Return the CPU shares of a container in its cgroup."""
    for hierarchy in cgroups():
        for found in hierarchy.rglob(container_id):
            if (found / "cpu.shares").exists():
                return int((found / "cpu.shares").read_text())
            if (found / "cpu.weight").exists():
                return round((int((found / "cpu.weight").read_text()) - 1) * 262_142 / 9_999) + 2
    raise AssertionError(f"no cgroup of {container_id}")


async def hooks_asked(plugin: HookPlugin) -> set[str]:
    return {each.method.rpartition("/")[2].removesuffix("Hook") for each in await plugin.received()}


async def container_id_of(cluster: Cluster, namespace: str, pod: str) -> str:
    path = "--output=jsonpath={.status.containerStatuses[0].containerID}"
    text = await cluster.kubectl("get", "pod", pod, f"--namespace={namespace}", path)
    return text.removeprefix("containerd://")


async def test_a_plugin_is_asked_at_all_hooks_and_its_values_reach_the_kernel(
    cluster: Cluster, cluster_namespace: str, short_directory: Path
) -> None:
    namespace = f"--namespace={cluster_namespace}"
    resources = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}
    resize = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "250m"}}}]}}
    ready = ("wait", "--for=condition=Ready", "--timeout=120s", namespace)
    async with HookPlugin(short_directory / "h", LIKE_KOORDLET) as plugin, proxied(cluster, short_directory) as proxy:
        plugin.register(proxy.plugins, "koordlet", HOOKS, failure_policy="Fail")
        await proxy.wait_for_plugins(1)
        await apply(cluster, cluster_namespace, sleeper("hooked", resources=resources))
        await cluster.kubectl(*ready, "pod/hooked")
        container = await container_id_of(cluster, cluster_namespace, "hooked")
        assert shares_of(container) == SHARES

        await cluster.kubectl(
            "patch", "pod", "hooked", namespace, "--subresource=resize", f"--patch={json.dumps(resize)}"
        )

        async def is_updated() -> bool:
            return shares_of(container) == UPDATED_SHARES

        await until(is_updated)
        assert await container_id_of(cluster, cluster_namespace, "hooked") == container

        asked = await hooks_asked(plugin)
        await plugin.stop()
        await apply(cluster, cluster_namespace, sleeper("late"))
        await proxy.wait_for_lines("plugin failed")
        phase = await cluster.kubectl("get", "pod", "late", namespace, "--output=jsonpath={.status.phase}")
        assert phase == "Pending"
        assert await NodeScript(cluster, cluster_namespace).restarts("hooked") == {"hooked/main": 0}

        await plugin.start()
        await cluster.kubectl(*ready, "pod/late")
        await cluster.kubectl("delete", "pod", "late", "hooked", namespace, "--timeout=120s")
        assert asked | await hooks_asked(plugin) == set(HOOKS)
