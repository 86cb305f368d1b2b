"""Runtimes and proxies killed under load: no record is lost, no pod bypasses a plugin, no call hangs."""

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
    """Start a required plugin that marks every container."""
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": {"container_annotations": MARK}})
    plugin.register(proxy.plugins, "p", ALL, failure_policy="Fail", timeout=50)
    await proxy.wait_for_plugins(1)
    return plugin


async def listed(client: CriClient) -> tuple[list[Json], list[Json]]:
    """List all sandboxes and containers of the runtime."""
    sandboxes = (await client.answer("ListPodSandbox", wait_for_ready=True)).get("items", [])
    return sandboxes, (await client.answer("ListContainers", wait_for_ready=True)).get("containers", [])


async def records_become_what_the_runtime_has(proxy: RuntimeProxy, client: CriClient) -> None:
    async def are_equal() -> bool:
        sandboxes, containers = await listed(client)
        return await proxy.metric('governor_proxy_records{kind="sandbox"}') == len(sandboxes) and await proxy.metric(
            'governor_proxy_records{kind="container"}'
        ) == len(containers)

    await until(are_equal)


async def all_are_recorded(plugin: HookPlugin, client: CriClient) -> None:
    """Check that every container has the mark, and that the hook request of its stop includes its pod."""
    sandboxes, containers = await listed(client)
    assert [each for each in containers if each["annotations"] != MARK] == []
    names = {each["id"]: each["metadata"]["name"] for each in sandboxes}
    for each in containers:
        await client.answer("StopContainer", {"container_id": each["id"]})
    sent = [each.request for each in await plugin.received("PostStopContainerHook")]
    pods = {each["container_meta"]["id"]: each["pod_meta"]["name"] for each in sent}
    assert {each["id"]: pods.get(each["id"]) for each in containers} == {
        each["id"]: names[each["pod_sandbox_id"]] for each in containers
    }
    for sandbox_id in names:
        await client.answer("StopPodSandbox", {"pod_sandbox_id": sandbox_id})
        await client.answer("RemovePodSandbox", {"pod_sandbox_id": sandbox_id})


async def disturbed(kubelet: Kubelet, runtime: CriRuntime | FakeRuntime, kills: int, most: int) -> None:
    """Kill the runtime at random moments of kubelet's work."""
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
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.soak)])
async def test_a_real_runtime_is_killed_under_load(
    recipe: str,
    kills: int,
    start_real_bed: StartRealBed,
    start_hook_plugin: StartHookPlugin,
) -> None:
    bed = await start_real_bed(recipe)
    runtime, proxy, client = bed.runtime, bed.proxy, bed.client
    plugin = await marking(start_hook_plugin, proxy)
    kubelet = Kubelet(client, pod_of(runtime.cgroup), container)

    await disturbed(kubelet, runtime, kills, most=12)

    # UNKNOWN comes from containerd: it is not initialized yet, or fails on state left by the kill.
    assert kubelet.codes <= {"OK", "UNAVAILABLE", "UNKNOWN"}, kubelet.errors
    assert [each for each in kubelet.errors if ": UNKNOWN: " in each and "plugin " in each] == []
    assert (await client.wire()).errors == ()
    await records_become_what_the_runtime_has(proxy, client)
    assert kubelet.kept.keys() <= {each["id"] for each in (await listed(client))[1]}
    await all_are_recorded(plugin, client)
    await records_become_what_the_runtime_has(proxy, client)


async def kill_fake_runtime(bed: Bed, start_hook_plugin: StartHookPlugin, kills: int) -> None:
    plugin = await marking(start_hook_plugin, bed.proxy)
    kubelet = Kubelet(bed.client, pod_of("fake"), container)

    await disturbed(kubelet, bed.runtime, kills, most=100)

    # A runtime without persistent state does not find the pods that kubelet has just run.
    assert kubelet.codes <= {"OK", "UNAVAILABLE", "NOT_FOUND"}, kubelet.errors
    assert (await bed.client.wire()).errors == ()
    await records_become_what_the_runtime_has(bed.proxy, bed.client)
    await all_are_recorded(plugin, bed.client)
    await records_become_what_the_runtime_has(bed.proxy, bed.client)
    assert await bed.proxy.metric("governor_proxy_held_bytes") == 0


async def test_a_runtime_is_killed_at_random_moments(own_bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    await kill_fake_runtime(own_bed, start_hook_plugin, 3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_runtime_is_killed_at_two_hundred_random_moments(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    await kill_fake_runtime(own_bed, start_hook_plugin, 200)


async def kill_proxy(
    proxy: RuntimeProxy, client: CriClient, plugin: HookPlugin, kubelet: Kubelet, kills: int, most: int
) -> None:
    """Kill the proxy at random moments of kubelet's work and check that no record is lost."""
    chance = seeded()
    async with kubelet.working(4):
        for _ in range(kills):
            await kubelet.some_calls(chance, most)
            os.kill(proxy.pid, signal.SIGKILL)
            await proxy.wait_for_exit()
            await proxy.start()
        await kubelet.some_calls(chance, most)

    assert kubelet.codes <= {"OK", "UNAVAILABLE"}, kubelet.errors
    assert kubelet.kept.keys() <= {each["id"] for each in (await listed(client))[1]}
    await records_become_what_the_runtime_has(proxy, client)
    await all_are_recorded(plugin, client)


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.soak)])
async def test_a_proxy_is_killed_at_random_moments(
    own_bed: Bed, start_hook_plugin: StartHookPlugin, kills: int
) -> None:
    plugin = await marking(start_hook_plugin, own_bed.proxy)
    kubelet = Kubelet(own_bed.client, pod_of("fake"), container)

    await kill_proxy(own_bed.proxy, own_bed.client, plugin, kubelet, kills, most=100)


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.soak)])
async def test_a_proxy_of_a_real_runtime_is_killed(
    kills: int,
    start_real_bed: StartRealBed,
    start_hook_plugin: StartHookPlugin,
) -> None:
    bed = await start_real_bed("containerd-2")
    runtime, proxy, client = bed.runtime, bed.proxy, bed.client
    plugin = await marking(start_hook_plugin, proxy)
    end_task = partial(runtime.ctr, "tasks", "delete", "--force")
    kubelet = Kubelet(client, pod_of(runtime.cgroup), container, end_task)

    await kill_proxy(proxy, client, plugin, kubelet, kills, most=12)
