"""Plugins of the runtime proxy: changes, rejections and failures, with a fake runtime."""

import asyncio
import os
import signal

import pytest

from testbed.cri.client import V1ALPHA2
from testbed.cri.control import Json
from testbed.cri.fixtures import StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed, StartProxy
from tests.integration.runtimeproxy.calls import POD, create_container, hooked, last, run_pod


@pytest.mark.parametrize("package", ["runtime.v1", V1ALPHA2])
async def test_d16_a_plugin_changes_what_the_runtime_receives(
    bed: Bed, start_hook_plugin: StartHookPlugin, package: str
) -> None:
    answer = {
        "labels": {"added": "yes"},
        "annotations": {"a": "2"},
        "cgroup_parent": "/other",
        "resources": {"cpu_shares": "512"},
    }
    plugin = await start_hook_plugin({"method": "PreRunPodSandboxHook", "answer": answer})
    await hooked(bed, plugin)

    await bed.client.answer("RunPodSandbox", {"config": POD}, package=package)

    config = (await last(bed.runtime, "RunPodSandbox")).request["config"]
    assert config["labels"] == {"app": "web", "added": "yes"}
    assert config["annotations"] == {"a": "2"}
    assert config["linux"]["cgroup_parent"] == "/other"
    assert config["linux"]["resources"] == {"cpu_shares": "512"}
    hook_request = (await last(plugin, "PreRunPodSandboxHook")).request
    assert hook_request["pod_meta"] == POD["metadata"]
    assert hook_request["cgroup_parent"] == "/pods/u-1"


async def test_each_hook_receives_the_recorded_pod_and_container(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    pod = await run_pod(bed)
    container = await create_container(bed, pod)
    await bed.client.answer("StartContainer", {"container_id": container})
    update = {"container_id": container, "linux": {"cpu_shares": "7"}}
    await bed.client.answer("UpdateContainerResources", update)
    await bed.client.answer("StopContainer", {"container_id": container})
    await bed.client.answer("StopPodSandbox", {"pod_sandbox_id": pod})

    received = await plugin.received()
    stopped = (await last(plugin, "PostStopContainerHook")).request
    assert [each.method.rpartition("/")[2].removesuffix("Hook") for each in received] == [
        "PreRunPodSandbox",
        "PreCreateContainer",
        "PreStartContainer",
        "PostStartContainer",
        "PreUpdateContainerResources",
        "PostStopContainer",
        "PostStopPodSandbox",
    ]
    assert stopped["pod_meta"] == POD["metadata"]
    assert stopped["container_meta"] == {"name": "main", "id": container}
    assert stopped["container_resources"] == {"cpu_shares": "7", "oom_score_adj": "5"}
    assert stopped["pod_labels"] == POD["labels"]
    assert (await last(plugin, "PostStopPodSandboxHook")).request["annotations"] == POD["annotations"]


async def test_a_rejection_names_the_plugin_and_its_reason(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    status = {"code": "PERMISSION_DENIED", "message": "no room on these cores"}
    plugin = await start_hook_plugin({"method": "PreRunPodSandboxHook", "status": status})
    await hooked(bed, plugin, name="strict", failure_policy="Fail")

    reply = await bed.client.call("RunPodSandbox", {"config": POD})

    assert reply.code == "PERMISSION_DENIED"
    assert reply.message == "plugin strict rejected PreRunPodSandbox: no room on these cores"
    assert await bed.runtime.received("RunPodSandbox") == []


async def test_d4_a_hanging_plugin_with_policy_ignore_delays_calls_only_by_its_timeout(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, timeout=2)

    reply, short = await asyncio.gather(
        bed.client.call("RunPodSandbox", {"config": POD}),
        bed.client.call("RunPodSandbox", {"config": POD}, deadline_s=3),  # leaves the plugin less than its timeout
    )

    assert (reply.code, short.code) == ("OK", "OK")
    assert len(await bed.runtime.received("RunPodSandbox")) == 2


async def test_d4_a_hanging_plugin_delays_no_other_call(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, timeout=30)
    async with bed.client.stream("RunPodSandbox", {"config": POD}):

        async def is_called() -> bool:
            return await plugin.open_calls() == 1

        await until(is_called)
        version = await bed.client.call("Version")
        assert (await bed.runtime.received("RunPodSandbox")) == []

    async def is_cancelled() -> bool:
        return await plugin.open_calls() == 0

    assert version.code == "OK"
    await until(is_cancelled)


async def test_d5_a_restarted_plugin_is_called_at_once(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    await run_pod(bed)
    for _ in range(3):
        await plugin.kill()
        assert (await bed.client.call("RunPodSandbox", {"config": POD})).code == "OK"
        await plugin.start()
        await run_pod(bed)
        assert len(await plugin.received("PreRunPodSandboxHook")) == 1


async def test_d6_all_plugins_are_called_in_order_with_earlier_changes(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    first = await start_hook_plugin({"answer": {"annotations": {"by": "first", "one": "1"}}})
    second = await start_hook_plugin({"answer": {"annotations": {"by": "second"}}})
    await hooked(bed, second, name="a-second", order=2, hooks=["PreRunPodSandbox"])
    await hooked(bed, first, name="z-first", order=1, hooks=["PreRunPodSandbox"])

    await run_pod(bed)

    seen = (await last(second, "PreRunPodSandboxHook")).request["annotations"]
    config = (await last(bed.runtime, "RunPodSandbox")).request["config"]
    assert seen == {"a": "1", "by": "first", "one": "1"}
    assert config["annotations"] == {"a": "1", "by": "second", "one": "1"}
    [line] = await bed.proxy.wait_for_lines("plugins changed a call")
    [conflict] = line["conflicts"]
    assert "z-first" in conflict
    assert "a-second" in conflict


async def test_a_conflict_is_rejected_with_policy_refuse(
    start_fake_runtime: StartFakeRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> None:
    runtime = await start_fake_runtime()
    proxy = await start_proxy(runtime.socket, "--conflict-policy=refuse")
    bed = Bed(runtime, proxy, await start_cri_client(proxy.socket))
    for name in ("one", "two"):
        await hooked(bed, await start_hook_plugin({"answer": {"annotations": {"by": name}}}), name=name)

    reply = await bed.client.call("RunPodSandbox", {"config": POD})

    assert reply.code == "ABORTED"
    assert "plugins one and two conflict on annotations.by" in reply.message


async def test_a_plugin_registered_during_a_copied_connection_is_called_from_then_on(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await run_pod(bed)
    async with bed.client.stream("GetContainerEvents") as events:
        await hooked(bed, plugin)
        await run_pod(bed)
        seen = await events.until(lambda progress: progress.count >= 2)

    assert len(await plugin.received("PreRunPodSandboxHook")) == 1
    assert seen.code == ""
    assert (await bed.client.wire()).errors == ()


@pytest.mark.parametrize("where", ["labels", "annotations"])
async def test_a_pod_can_opt_out_of_plugins(bed: Bed, start_hook_plugin: StartHookPlugin, where: str) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, failure_policy="Fail")

    await run_pod(bed, **{where: {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}})

    assert await plugin.received() == []
    assert len(await bed.runtime.received("RunPodSandbox")) == 1


async def test_d10_trace_context_reaches_plugin_and_runtime(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"

    metadata = {"traceparent": [trace], "tracestate": ["a=1", "b=2"], "baggage": ["k=v"], "authorization": ["secret"]}
    await bed.client.answer("RunPodSandbox", {"config": POD}, metadata=metadata)

    sent = (await last(plugin, "PreRunPodSandboxHook")).metadata
    assert {name: sent.get(name) for name in metadata} == {**metadata, "authorization": None}
    passed = (await last(bed.runtime, "RunPodSandbox")).metadata
    assert {name: passed[name] for name in metadata} == metadata


@pytest.mark.parametrize("rule", [{"crash": True}, {"raw": b"\xff\xff\xff"}])
async def test_a_plugin_that_crashes_or_returns_garbage_is_ignored(
    bed: Bed, start_hook_plugin: StartHookPlugin, rule: Json
) -> None:
    plugin = await start_hook_plugin(rule)
    await hooked(bed, plugin)

    await run_pod(bed)

    assert len(await bed.runtime.received("RunPodSandbox")) == 1
    assert len(await bed.proxy.wait_for_lines("plugin failed")) == 1


async def test_a_compressed_request_is_decoded(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"answer": {"annotations": {"by": "p"}}})
    await hooked(bed, plugin, hooks=["PreRunPodSandbox"])

    await bed.client.answer("RunPodSandbox", {"config": POD}, compressor="gzip")

    assert (await last(bed.runtime, "RunPodSandbox")).request["config"]["annotations"] == {"a": "1", "by": "p"}


async def test_a_killed_proxy_loses_no_records(own_bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(own_bed, plugin)
    container = await create_container(own_bed, await run_pod(own_bed))
    os.kill(own_bed.proxy.pid, signal.SIGKILL)
    await own_bed.proxy.wait_for_exit()
    await own_bed.proxy.start()

    reply = await own_bed.client.call("StartContainer", {"container_id": container}, wait_for_ready=True)

    hook_request = (await last(plugin, "PreStartContainerHook")).request
    assert reply.code == "OK"
    assert hook_request["pod_meta"] == POD["metadata"]
    assert hook_request["container_meta"] == {"name": "main", "id": container}
