"""Plugins of the runtime proxy: what they change, refuse and break, seen at a runtime that answers at once."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from testbed.cri_client import V1ALPHA2
from testbed.cri_control import Json
from testbed.cri_fixtures import StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri_peers import HookPlugin
from testbed.waiting import until
from tests.integration.proxy_bed import Bed, StartProxy

ALL = [
    "PreRunPodSandbox",
    "PostStopPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PostStopContainer",
    "PreUpdateContainerResources",
]
POD: Json = {
    "metadata": {"name": "web", "uid": "u-1", "namespace": "shop"},
    "labels": {"app": "web"},
    "annotations": {"a": "1"},
    "linux": {"cgroup_parent": "/pods/u-1"},
}
CONTAINER: Json = {
    "metadata": {"name": "main"},
    "envs": [{"key": "A", "value": b"1"}, {"key": "B", "value": b"\xff\xfe"}, {"key": "A", "value": b"2"}],
    "linux": {"resources": {"cpu_shares": "100", "oom_score_adj": "5"}},
}


async def hooked(bed: Bed, plugin: HookPlugin, name: str = "p", **more: Any) -> Path:
    """Register a plugin for all hooks and wait until it is in force."""
    before = len(list(bed.proxy.plugins.glob("*.json"))) if bed.proxy.plugins.exists() else 0
    path = plugin.register(bed.proxy.plugins, name, more.pop("hooks", ALL), **more)
    await bed.proxy.knows(before + 1)
    return path


async def run_pod(bed: Bed, **changes: Any) -> str:
    answer = await bed.client.answer("RunPodSandbox", {"config": {**POD, **changes}})
    return str(answer["pod_sandbox_id"])


async def create(bed: Bed, pod: str, **changes: Any) -> str:
    request = {"pod_sandbox_id": pod, "config": {**CONTAINER, **changes}, "sandbox_config": POD}
    return str((await bed.client.answer("CreateContainer", request))["container_id"])


async def last(peer: Any, method: str) -> Any:
    return (await peer.received(method))[-1]


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
    asked = (await last(plugin, "PreRunPodSandboxHook")).request
    assert asked["pod_meta"] == POD["metadata"]
    assert asked["cgroup_parent"] == "/pods/u-1"


async def test_d12_d22_d24_what_a_plugin_does_not_change_stays_as_it_was(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    answer = {"container_resources": {"memory_limit_in_bytes": "1000"}, "container_envs": {"A": "2", "NEW": "x"}}
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": answer})
    await hooked(bed, plugin)
    pod = await run_pod(bed)

    await create(bed, pod)

    config = (await last(bed.runtime, "CreateContainer")).request["config"]
    assert [(each["key"], each["value"]) for each in config["envs"]] == [
        ("A", "MQ=="),
        ("B", "//4="),
        ("A", "Mg=="),
        ("NEW", "eA=="),
    ]
    assert config["linux"]["resources"] == {
        "cpu_shares": "100",
        "oom_score_adj": "5",
        "memory_limit_in_bytes": "1000",
    }


async def test_each_hook_is_called_with_what_is_known_of_pod_and_container(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    pod = await run_pod(bed)
    container = await create(bed, pod)
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


async def test_a_refusal_names_the_plugin_and_its_reason(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    status = {"code": "PERMISSION_DENIED", "message": "no room on these cores"}
    plugin = await start_hook_plugin({"method": "PreRunPodSandboxHook", "status": status})
    await hooked(bed, plugin, name="strict", failure_policy="Fail")

    reply = await bed.client.call("RunPodSandbox", {"config": POD})

    assert reply.code == "PERMISSION_DENIED"
    assert reply.message == "plugin strict refuses PreRunPodSandbox: no room on these cores"
    assert await bed.runtime.received("RunPodSandbox") == []


async def test_d4_a_hanging_plugin_under_ignore_delays_only_within_its_budget(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, timeout="300ms")

    reply = await bed.client.call("RunPodSandbox", {"config": POD}, deadline_s=10)
    short = await bed.client.call("RunPodSandbox", {"config": POD}, deadline_s=0.5)

    assert (reply.code, short.code) == ("OK", "OK")
    assert len(await bed.runtime.received("RunPodSandbox")) == 2


async def test_d4_a_hanging_plugin_holds_no_other_call(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, timeout=30)
    async with bed.client.stream("RunPodSandbox", {"config": POD}):

        async def is_asked() -> bool:
            return await plugin.open_calls() == 1

        await until(is_asked)
        version = await bed.client.call("Version")
        assert (await bed.runtime.received("RunPodSandbox")) == []

    async def is_given_up() -> bool:
        return await plugin.open_calls() == 0

    assert version.code == "OK"
    await until(is_given_up)


async def test_d5_a_plugin_that_restarts_is_asked_at_once(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    await run_pod(bed)
    for _ in range(3):
        await plugin.kill()
        assert (await bed.client.call("RunPodSandbox", {"config": POD})).code == "OK"
        await plugin.start()
        await run_pod(bed)
        assert len(await plugin.received("PreRunPodSandboxHook")) == 1


async def test_d15_fail_lets_no_call_through_while_the_plugin_is_away(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, name="guard", failure_policy="Fail")
    await plugin.kill()

    reply = await bed.client.call("RunPodSandbox", {"config": POD})

    assert reply.code == "UNAVAILABLE"
    assert reply.message.startswith("plugin guard refuses PreRunPodSandbox: plugin guard cannot be reached")
    assert await bed.runtime.received("RunPodSandbox") == []


async def test_d15_fail_lets_no_call_through_that_cannot_be_read(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, name="guard", failure_policy="Fail")

    reply = await bed.client.call("/runtime.v1.RuntimeService/RunPodSandbox", raw=b"\xff\xff\xff")

    assert "plugin guard could not be asked" in reply.message
    assert await bed.runtime.received("RunPodSandbox") == []


async def test_d6_all_plugins_are_asked_in_order_and_see_the_earlier_ones(
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
    [conflict] = bed.proxy.lines("plugins disagree")
    assert "z-first" in conflict["conflict"]
    assert "a-second" in conflict["conflict"]


async def test_a_conflict_is_refused_where_the_operator_wants_it(
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
    assert "plugins one and two disagree about annotations.by" in reply.message


async def test_d1_a_file_that_cannot_be_used_harms_nobody(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"answer": {"annotations": {"by": "good"}}})
    await hooked(bed, plugin, name="good", hooks=["PreRunPodSandbox"])
    for name, text in {"empty": "", "broken": "{", "typed": '{"remote-endpoint": 1}', "good": "[]"}.items():
        (bed.proxy.plugins / f"{name}.json").write_text(text)
    await bed.proxy.metric_becomes("governor_proxy_plugin_file_errors", 4)

    await run_pod(bed)

    config = (await last(bed.runtime, "RunPodSandbox")).request["config"]
    assert config["annotations"] == {"a": "1", "by": "good"}


async def test_d20_a_plugin_whose_file_is_gone_is_not_asked(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    file = await hooked(bed, plugin)
    await run_pod(bed)
    file.unlink()
    await bed.proxy.knows(0)

    await run_pod(bed)

    assert len(await plugin.received("PreRunPodSandboxHook")) == 1


async def test_a_plugin_that_comes_while_a_connection_is_copied_is_asked_from_then_on(
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
async def test_a_pod_that_wants_to_be_left_alone_is(bed: Bed, start_hook_plugin: StartHookPlugin, where: str) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, failure_policy="Fail")

    await run_pod(bed, **{where: {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}})

    assert await plugin.received() == []
    assert len(await bed.runtime.received("RunPodSandbox")) == 1


async def test_d10_trace_context_reaches_plugin_and_runtime(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"

    await bed.client.answer("RunPodSandbox", {"config": POD}, metadata={"traceparent": [trace]})

    assert (await last(plugin, "PreRunPodSandboxHook")).metadata["traceparent"] == [trace]
    assert (await last(bed.runtime, "RunPodSandbox")).metadata["traceparent"] == [trace]


async def test_d19_the_audit_log_names_plugin_pod_field_and_hides_the_environment(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    answer = {"container_envs": {"TOKEN": "s3cret"}, "container_resources": {"cpu_shares": "7"}}
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": answer})
    await hooked(bed, plugin)

    await create(bed, await run_pod(bed), envs=[{"key": "PASSWORD", "value": b"hunter2"}])

    lines = {each["field"]: each for each in bed.proxy.lines("plugin changed a field")}
    shares = lines["container_resources.cpu_shares"]
    assert (shares["plugin"], shares["pod"], shares["container"]) == ("p", "shop/web", "main")
    assert (shares["old"], shares["new"]) == (100, 7)
    assert lines["container_envs.TOKEN"]["new"] == "***"
    assert "s3cret" not in bed.proxy.log.read_text()
    assert "hunter2" not in bed.proxy.log.read_text()


async def test_d3_resources_are_set_in_a_request_without_a_linux_part(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    answer = {"container_resources": {"cpu_shares": "7"}}
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": answer})
    await hooked(bed, plugin)
    pod = await run_pod(bed)

    await bed.client.answer("CreateContainer", {"pod_sandbox_id": pod})

    config = (await last(bed.runtime, "CreateContainer")).request["config"]
    assert config["linux"]["resources"] == {"cpu_shares": "7"}


@pytest.mark.parametrize("rule", [{"crash": True}, {"raw": b"\xff\xff\xff"}])
async def test_a_plugin_that_crashes_or_talks_nonsense_is_ignored(
    bed: Bed, start_hook_plugin: StartHookPlugin, rule: Json
) -> None:
    plugin = await start_hook_plugin(rule)
    await hooked(bed, plugin)

    await run_pod(bed)

    assert len(await bed.runtime.received("RunPodSandbox")) == 1
    assert len(bed.proxy.lines("plugin failed")) == 1


async def test_a_compressed_request_is_read(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"answer": {"annotations": {"by": "p"}}})
    await hooked(bed, plugin, hooks=["PreRunPodSandbox"])

    await bed.client.answer("RunPodSandbox", {"config": POD}, compressor="gzip")

    assert (await last(bed.runtime, "RunPodSandbox")).request["config"]["annotations"] == {"a": "1", "by": "p"}


async def test_a_killed_proxy_forgets_nothing(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    container = await create(bed, await run_pod(bed))
    os.kill(bed.proxy.pid, signal.SIGKILL)
    await bed.proxy.wait_for_exit()
    await bed.proxy.start()

    reply = await bed.client.call("StartContainer", {"container_id": container}, wait_for_ready=True)

    asked = (await last(plugin, "PreStartContainerHook")).request
    assert reply.code == "OK"
    assert asked["pod_meta"] == POD["metadata"]
    assert asked["container_meta"] == {"name": "main", "id": container}


async def test_d23_a_record_stays_while_the_runtime_has_not_confirmed_its_end(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    container = await create(bed, await run_pod(bed))
    await bed.runtime.set({"status": {"code": "UNKNOWN", "message": "disk on fire"}})
    for method in ("StopContainer", "RemoveContainer"):
        assert (await bed.client.call(method, {"container_id": container})).code == "UNKNOWN"
    assert await plugin.received("PostStopContainerHook") == []
    await bed.runtime.set()

    await bed.client.answer("StopContainer", {"container_id": container})

    assert (await last(plugin, "PostStopContainerHook")).request["container_meta"]["id"] == container
