"""Plugins that were away: notifications are delivered late or counted, and the state of the node is sent."""

import pytest

from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.peers import HookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import create_container, hooked, run_pod

STOPPED = "governor_proxy_late_notifications_total"
MISSED = "governor_proxy_missed_notifications_total"


def labels(hook: str) -> str:
    return f'{{plugin="p",hook="{hook}"}}'


async def hooks_of(plugin: HookPlugin) -> list[str]:
    return [each.method.rpartition("/")[2].removesuffix("Hook") for each in await plugin.received()]


async def test_notifications_that_a_plugin_missed_are_delivered_in_order_when_it_is_back(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(own_bed, plugin, hooks=["PostStopContainer", "PostStopPodSandbox"])
    pod = await run_pod(own_bed)
    container = await create_container(own_bed, pod)
    await plugin.stop()
    await own_bed.client.answer("StopContainer", {"container_id": container})
    await own_bed.client.answer("StopPodSandbox", {"pod_sandbox_id": pod})
    await plugin.start()

    await own_bed.proxy.wait_for_metric(f"{STOPPED}{labels('PostStopPodSandbox')}", 1)

    assert await hooks_of(plugin) == ["PostStopContainer", "PostStopPodSandbox"]
    [stopped] = await plugin.received("PostStopContainerHook")
    assert stopped.request["container_meta"]["id"] == container
    assert await own_bed.proxy.metric(f"{MISSED}{labels('PostStopContainer')}") == 0


async def test_a_notification_that_may_have_been_received_is_counted_and_not_repeated(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(own_bed, plugin, hooks=["PostStopPodSandbox"], timeout="1s")
    pod = await run_pod(own_bed)
    await own_bed.client.answer("StopPodSandbox", {"pod_sandbox_id": pod})

    await own_bed.proxy.wait_for_metric(f"{MISSED}{labels('PostStopPodSandbox')}", 1)

    assert await hooks_of(plugin) == ["PostStopPodSandbox"]


async def test_what_a_required_plugin_missed_is_left_to_kubelet(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(own_bed, plugin, hooks=["PostStopPodSandbox"], failure_policy="Fail")
    pod = await run_pod(own_bed)
    await plugin.stop()
    assert (await own_bed.client.call("StopPodSandbox", {"pod_sandbox_id": pod})).code == "UNAVAILABLE"
    await plugin.start()
    await own_bed.client.answer("StopPodSandbox", {"pod_sandbox_id": pod})

    assert await hooks_of(plugin) == ["PostStopPodSandbox"]
    assert await own_bed.proxy.metric(f"{STOPPED}{labels('PostStopPodSandbox')}") == 0


async def test_notifications_of_a_plugin_that_is_removed_are_counted(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    path = await hooked(own_bed, plugin, hooks=["PostStopPodSandbox"])
    pod = await run_pod(own_bed)
    await plugin.stop()
    await own_bed.client.answer("StopPodSandbox", {"pod_sandbox_id": pod})
    path.unlink()

    await own_bed.proxy.wait_for_metric(f"{MISSED}{labels('PostStopPodSandbox')}", 1)


@pytest.mark.parametrize("synchronize", [True, False])
async def test_a_plugin_learns_what_exists_whenever_it_has_connected(
    own_bed: Bed, start_hook_plugin: StartHookPlugin, *, synchronize: bool
) -> None:
    plugin = await start_hook_plugin()
    await hooked(own_bed, plugin, hooks=["PostStopPodSandbox"], synchronize=synchronize)
    pod = await run_pod(own_bed)
    container = await create_container(own_bed, pod)
    if not synchronize:
        await own_bed.client.answer("StopPodSandbox", {"pod_sandbox_id": pod})
        assert await hooks_of(plugin) == ["PostStopPodSandbox"]
        return

    async def synchronized() -> bool:
        return any(container.encode() in each.raw for each in await plugin.received("Synchronize"))

    await plugin.stop()
    await plugin.start()
    await until(synchronized)
    before = len(await plugin.received("Synchronize"))
    await plugin.stop()
    await plugin.start()

    async def again() -> bool:
        return len(await plugin.received("Synchronize")) >= 1

    await until(again)
    assert before >= 1
