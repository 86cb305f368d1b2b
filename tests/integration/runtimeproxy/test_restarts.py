"""Runtimes and proxies that are killed while pods are run: nothing is lost, no pod passes a plugin, nobody is stuck."""

import os
import random
import secrets
import signal
from collections.abc import Callable
from functools import partial

import pytest

from testbed.cri.client import CriClient
from testbed.cri.control import Json
from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.peers import FakeRuntime, HookPlugin
from testbed.cri.pods import container, sandbox
from testbed.cri.runtime import CriRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed, StartRealBed
from tests.integration.runtimeproxy.calls import ALL
from tests.integration.runtimeproxy.kubelet import Kubelet

MARK = {"marked": "by the plugin"}


def seeded() -> random.Random:
    seed = int(os.environ.get("GOVERNOR_SEED") or secrets.randbits(32))
    print(f"GOVERNOR_SEED={seed}")  # noqa: T201 - shown when it fails, to run it again
    return random.Random(seed)


def pod_of(cgroup: str) -> Callable[[str], Json]:
    return lambda name: sandbox(name, cgroup)


async def marking(start_hook_plugin: StartHookPlugin, proxy: RuntimeProxy) -> HookPlugin:
    """A plugin without whose mark no container may be created."""
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": {"container_annotations": MARK}})
    plugin.register(proxy.plugins, "p", ALL, failure_policy="Fail", timeout=50)
    await proxy.knows(1)
    return plugin


async def listed(client: CriClient) -> tuple[list[Json], list[Json]]:
    """All sandboxes and containers that the runtime has."""
    sandboxes = (await client.answer("ListPodSandbox", wait_for_ready=True)).get("items", [])
    return sandboxes, (await client.answer("ListContainers", wait_for_ready=True)).get("containers", [])


async def records_become_what_the_runtime_has(proxy: RuntimeProxy, client: CriClient) -> None:
    async def are_equal() -> bool:
        sandboxes, containers = await listed(client)
        return await proxy.metric('governor_proxy_records{kind="sandbox"}') == len(sandboxes) and await proxy.metric(
            'governor_proxy_records{kind="container"}'
        ) == len(containers)

    await until(are_equal)


async def all_is_known(plugin: HookPlugin, client: CriClient) -> None:
    """Every container has the mark, and of each the plugin is told with its pod when it is stopped."""
    sandboxes, containers = await listed(client)
    assert [each for each in containers if each["annotations"] != MARK] == []
    names = {each["id"]: each["metadata"]["name"] for each in sandboxes}
    for each in containers:
        await client.answer("StopContainer", {"container_id": each["id"]})
    told = [each.request for each in await plugin.received("PostStopContainerHook")]
    pods = {each["container_meta"]["id"]: each["pod_meta"]["name"] for each in told}
    assert {each["id"]: pods.get(each["id"]) for each in containers} == {
        each["id"]: names[each["pod_sandbox_id"]] for each in containers
    }
    for sandbox_id in names:
        await client.answer("StopPodSandbox", {"pod_sandbox_id": sandbox_id})
        await client.answer("RemovePodSandbox", {"pod_sandbox_id": sandbox_id})


async def disturbed(kubelet: Kubelet, runtime: CriRuntime | FakeRuntime, kills: int, most: int) -> None:
    """Kill the runtime at random moments of the kubelet's work."""
    chance = seeded()
    async with kubelet.working(4):
        for _ in range(kills):
            await kubelet.some_calls(chance, most)
            await runtime.kill()
            if chance.random() < 0.5:
                await kubelet.some_calls(chance, 4)
            await runtime.start()
        await kubelet.some_calls(chance, most)


@pytest.mark.parametrize("recipe", ["containerd", "containerd-2"])
async def test_a_real_runtime_is_killed_under_load(
    recipe: str,
    start_real_bed: StartRealBed,
    start_hook_plugin: StartHookPlugin,
) -> None:
    bed = await start_real_bed(recipe)
    runtime, proxy, client = bed.runtime, bed.proxy, bed.client
    plugin = await marking(start_hook_plugin, proxy)
    kubelet = Kubelet(client, pod_of(runtime.cgroup), container)

    await disturbed(kubelet, runtime, kills=2, most=12)

    # UNKNOWN is containerd's own: it is not initialized yet, or stumbles over what it left when it was killed.
    assert kubelet.codes <= {"OK", "UNAVAILABLE", "UNKNOWN"}, kubelet.complaints
    assert [each for each in kubelet.complaints if ": UNKNOWN: " in each and "plugin " in each] == []
    assert (await client.wire()).errors == ()
    await records_become_what_the_runtime_has(proxy, client)
    assert kubelet.kept.keys() <= {each["id"] for each in (await listed(client))[1]}
    await all_is_known(plugin, client)
    await records_become_what_the_runtime_has(proxy, client)


async def kill_fake_runtime(bed: Bed, start_hook_plugin: StartHookPlugin, kills: int) -> None:
    plugin = await marking(start_hook_plugin, bed.proxy)
    kubelet = Kubelet(bed.client, pod_of("fake"), container)

    await disturbed(kubelet, bed.runtime, kills, most=100)

    # A runtime that keeps nothing does not know the pods that kubelet has just run.
    assert kubelet.codes <= {"OK", "UNAVAILABLE", "NOT_FOUND"}, kubelet.complaints
    assert (await bed.client.wire()).errors == ()
    await records_become_what_the_runtime_has(bed.proxy, bed.client)
    await all_is_known(plugin, bed.client)
    await records_become_what_the_runtime_has(bed.proxy, bed.client)
    assert await bed.proxy.metric("governor_proxy_held_bytes") == 0


async def test_a_runtime_is_killed_at_random_moments(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    await kill_fake_runtime(bed, start_hook_plugin, 6)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_runtime_is_killed_at_two_hundred_random_moments(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    await kill_fake_runtime(bed, start_hook_plugin, 200)


async def kill_proxy(
    proxy: RuntimeProxy, client: CriClient, plugin: HookPlugin, kubelet: Kubelet, kills: int, most: int
) -> None:
    """Kill the proxy at random moments of the kubelet's work; then nothing is lost."""
    chance = seeded()
    async with kubelet.working(4):
        for _ in range(kills):
            await kubelet.some_calls(chance, most)
            os.kill(proxy.pid, signal.SIGKILL)
            await proxy.wait_for_exit()
            await proxy.start()
        await kubelet.some_calls(chance, most)

    assert kubelet.codes <= {"OK", "UNAVAILABLE"}, kubelet.complaints
    assert kubelet.kept.keys() <= {each["id"] for each in (await listed(client))[1]}
    await records_become_what_the_runtime_has(proxy, client)
    await all_is_known(plugin, client)


async def test_a_proxy_is_killed_at_random_moments(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await marking(start_hook_plugin, bed.proxy)
    kubelet = Kubelet(bed.client, pod_of("fake"), container)

    await kill_proxy(bed.proxy, bed.client, plugin, kubelet, kills=4, most=100)


async def test_a_proxy_is_killed_before_a_real_runtime(
    start_real_bed: StartRealBed,
    start_hook_plugin: StartHookPlugin,
) -> None:
    bed = await start_real_bed("containerd-2")
    runtime, proxy, client = bed.runtime, bed.proxy, bed.client
    plugin = await marking(start_hook_plugin, proxy)
    end_task = partial(runtime.ctr, "tasks", "delete", "--force")
    kubelet = Kubelet(client, pod_of(runtime.cgroup), container, end_task)

    await kill_proxy(proxy, client, plugin, kubelet, kills=2, most=12)
