"""Calls that end while plugins or the runtime work on them are cancelled everywhere and leave nothing behind."""

import asyncio

from testbed.cri.control import Json
from testbed.cri.fixtures import StartCriClient, StartHookPlugin
from testbed.cri.peers import AnsweringPeer
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import POD, create_container, hooked, run_pod


async def begins(peer: AnsweringPeer, calls: int = 1) -> None:
    async def is_at_work() -> bool:
        return await peer.open_calls() == calls

    await until(is_at_work)


async def all_calls_end(bed: Bed, *peers: AnsweringPeer) -> None:
    async def is_idle() -> bool:
        streams = await bed.proxy.metric("governor_proxy_streams")
        held = await bed.proxy.metric("governor_proxy_held_bytes")
        return streams == held == 0 and not any([await peer.open_calls() for peer in peers])

    await until(is_idle)


async def test_an_exceeded_deadline_cancels_the_plugins_call(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    """The plugin gets what half of the deadline, kept for the hanging runtime, leaves."""
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, timeout=60)
    await bed.runtime.set({"hang": True})

    reply = await bed.client.call("RunPodSandbox", {"config": POD}, deadline_s=3)

    assert reply.code == "DEADLINE_EXCEEDED"
    await all_calls_end(bed, plugin, bed.runtime)
    assert (await plugin.statuses())["PreRunPodSandboxHook"] in ({"CANCELLED": 1}, {"DEADLINE_EXCEEDED": 1})
    assert (await bed.runtime.statuses())["RunPodSandbox"] in ({"CANCELLED": 1}, {"DEADLINE_EXCEEDED": 1})


async def test_calls_cancelled_before_during_and_after_the_runtime_leave_nothing_behind(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, timeout=60, failure_policy="Fail")
    container = await create_container(bed, await run_pod(bed))
    start: Json = {"container_id": container}
    hanging = {"hang": True}
    await plugin.set({**hanging, "method": "PreStartContainerHook"})
    async with bed.client.stream("StartContainer", start):
        await begins(plugin)
    await all_calls_end(bed, plugin, bed.runtime)
    assert await bed.runtime.received("StartContainer") == []

    await plugin.set()
    await bed.runtime.set({**hanging, "method": "StartContainer"})
    async with bed.client.stream("StartContainer", start):
        await begins(bed.runtime)
    await all_calls_end(bed, plugin, bed.runtime)
    assert await plugin.received("PostStartContainerHook") == []

    await bed.runtime.set()
    await plugin.set({"delay_s": 0.5, "method": "PostStartContainerHook"})
    async with bed.client.stream("StartContainer", start):
        await begins(plugin)
    await all_calls_end(bed, plugin, bed.runtime)
    # The container runs, so the plugin is notified although the call is gone.
    assert (await plugin.statuses())["PostStartContainerHook"] == {"OK": 1}

    await plugin.set()
    await bed.client.answer("StartContainer", start)
    assert (await bed.client.wire()).errors == ()


async def test_the_held_calls_of_a_killed_client_are_cancelled(
    bed: Bed, start_cri_client: StartCriClient, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, timeout=60, failure_policy="Fail")
    client = await start_cri_client(bed.proxy.socket)
    request = {"config": {**POD, "annotations": {"large": "x" * 100_000}}}
    calls = [asyncio.create_task(client.ask("POST", "/streams", _stream(request))) for _ in range(20)]
    await asyncio.gather(*calls)
    await begins(plugin, 20)
    assert await bed.proxy.metric("governor_proxy_held_bytes") > 20 * 100_000

    await client.kill()

    await all_calls_end(bed, plugin, bed.runtime)
    assert await bed.runtime.received("RunPodSandbox") == []
    await plugin.set()
    await run_pod(bed)


def _stream(request: Json) -> Json:
    return {"method": "RunPodSandbox", "request": request, "deadline_s": 0}
