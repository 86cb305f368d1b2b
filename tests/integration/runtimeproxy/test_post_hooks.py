"""Hooks after the runtime has succeeded: plugins are notified whatever happens to the call, and no result is hidden."""

import pytest

from testbed.cri.control import Json
from testbed.cri.fixtures import StartCriClient, StartHookPlugin
from testbed.cri.peers import AnsweringPeer, HookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import create_container, hooked, run_pod

MIB = 1024 * 1024


async def begins(peer: AnsweringPeer) -> None:
    async def is_at_work() -> bool:
        return await peer.open_calls() == 1

    await until(is_at_work)


async def has_ended(plugin: HookPlugin, method: str, statuses: dict[str, int]) -> None:
    """Wait until all calls of a method have ended with these statuses."""

    async def are_equal() -> bool:
        return (await plugin.statuses()).get(method) == statuses

    await until(are_equal)


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("ending", ["cancelled", "killed"])
async def test_all_plugins_are_notified_although_the_client_is_gone(
    bed: Bed, start_cri_client: StartCriClient, start_hook_plugin: StartHookPlugin, ending: str, policy: str
) -> None:
    slow = await start_hook_plugin({"method": "PostStopContainerHook", "delay_s": 0.5})
    next_one = await start_hook_plugin()
    await hooked(bed, slow, name="a", failure_policy=policy, timeout=60)
    await hooked(bed, next_one, name="b", failure_policy=policy, timeout=60)
    container = await create_container(bed, await run_pod(bed))
    client = await start_cri_client(bed.proxy.socket)

    request = {"method": "StopContainer", "request": {"container_id": container}, "deadline_s": 0}

    stream = (await client.ask("POST", "/streams", request))["number"]
    await begins(slow)
    await (client.ask("DELETE", f"/streams/{stream}") if ending == "cancelled" else client.kill())

    await has_ended(slow, "PostStopContainerHook", {"OK": 1})
    await has_ended(next_one, "PostStopContainerHook", {"OK": 1})


async def test_a_stopping_proxy_notifies_plugins_of_what_the_runtime_has_done(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"method": "PostStopContainerHook", "delay_s": 1})
    await hooked(own_bed, plugin, timeout=60)
    container = await create_container(own_bed, await run_pod(own_bed))

    async with own_bed.client.stream("StopContainer", {"container_id": container}) as call:
        await begins(plugin)
        await call.end()
        await own_bed.proxy.stop()

    await has_ended(plugin, "PostStopContainerHook", {"OK": 1})


@pytest.mark.parametrize(
    "rule", [{"status": {"code": "ABORTED", "message": "no"}}, {"raw": b"\xff\xff\xff"}], ids=["status", "garbage"]
)
async def test_a_container_that_a_required_plugin_rejects_after_its_start_is_stopped(
    bed: Bed, start_hook_plugin: StartHookPlugin, rule: Json
) -> None:
    """Otherwise kubelet would count it as failed, and it would run."""
    plugin = await start_hook_plugin({**rule, "method": "PostStartContainerHook"})
    await hooked(bed, plugin, name="guard", failure_policy="Fail")
    container = await create_container(bed, await run_pod(bed))

    reply = await bed.client.call("StartContainer", {"container_id": container})

    assert reply.code != "OK"
    assert reply.message.startswith("plugin guard rejected PostStartContainer: ")
    assert reply.message.endswith("; the container was stopped")
    listed = (await bed.client.answer("ListContainers"))["containers"]
    assert [each["state"] for each in listed if each["id"] == container] == ["CONTAINER_EXITED"]
    (stopped,) = await bed.runtime.received("StopContainer")
    assert stopped.request["container_id"] == container
    (notified,) = await plugin.received("PostStopContainerHook")
    assert notified.request["container_meta"]["id"] == container


async def test_a_started_container_that_cannot_be_stopped_is_reported(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"method": "PostStartContainerHook", "status": {"code": "ABORTED"}})
    await hooked(bed, plugin, name="guard", failure_policy="Fail")
    container = await create_container(bed, await run_pod(bed))
    await bed.runtime.set({"method": "StopContainer", "status": {"code": "INTERNAL", "message": "stuck"}})

    reply = await bed.client.call("StartContainer", {"container_id": container})

    assert reply.message.endswith("; the container could not be stopped and runs: stuck")
    assert await plugin.received("PostStopContainerHook") == []
    (line,) = await bed.proxy.wait_for_lines("a rejected container could not be stopped")
    assert line["container_id"] == container


@pytest.mark.parametrize("size", [100_000, 17 * MIB])
async def test_a_response_too_large_to_be_held_passes_and_plugins_are_notified(
    bed: Bed, start_hook_plugin: StartHookPlugin, size: int
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    container = await create_container(bed, await run_pod(bed))
    await bed.runtime.set({"method": "StopContainer", "answer": {}, "answer_bytes": size})

    reply = await bed.client.call("StopContainer", {"container_id": container})

    assert (reply.code, reply.size) == ("OK", size)
    await has_ended(plugin, "PostStopContainerHook", {"OK": 1})
