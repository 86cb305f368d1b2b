"""The numbered defects of koord-runtime-proxy that plugins, their files and records can bring out.

The others are where their subject is: what passes (D7 to D11), the process (D13, D14, D21), real containerds (D2, D16
to D18), plugins that hang, restart or are several (D4 to D6).
"""

import re
from pathlib import Path

import pytest

from testbed.cri.control import Json
from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import ALL, POD, create_container, hooked, last, run_pod

WRONG_FILES = {"empty": "", "broken": "{", "typed": '{"remote-endpoint": 1}', "list": "[]", "null": "null"}


def test_each_defect_has_a_test() -> None:
    texts = [file.read_text() for file in Path(__file__).parent.glob("test_*.py")]
    numbers = {int(number) for text in texts for number in re.findall(r"def test_d([0-9]+)_", text)}

    assert numbers == set(range(1, 25))


async def test_d1_an_invalid_file_affects_no_other_plugin(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"answer": {"annotations": {"by": "good"}}})
    await hooked(bed, plugin, name="good", hooks=["PreRunPodSandbox"])
    for name, text in {**WRONG_FILES, "good": "[]"}.items():
        (bed.proxy.plugins / f"{name}.json").write_text(text)
    await bed.proxy.wait_for_metric("governor_proxy_plugin_file_errors", len(WRONG_FILES) + 1)

    await run_pod(bed)

    config = (await last(bed.runtime, "RunPodSandbox")).request["config"]
    assert config["annotations"] == {"a": "1", "by": "good"}


async def test_d1_invalid_files_at_start_affect_no_other_plugin(
    start_fake_runtime: StartFakeRuntime,
    start_server: StartServer,
    start_cri_client: StartCriClient,
    peer_directory: MakeDirectory,
) -> None:
    runtime = await start_fake_runtime()
    proxy = RuntimeProxy(peer_directory(), runtime.socket)
    proxy.plugins.mkdir(parents=True)
    for name, text in WRONG_FILES.items():
        (proxy.plugins / f"{name}.json").write_text(text)
    await start_server(proxy)
    bed = Bed(runtime, proxy, await start_cri_client(proxy.socket))

    pod = await run_pod(bed)
    await create_container(bed, pod)
    await bed.client.answer("StopPodSandbox", {"pod_sandbox_id": pod})
    await bed.client.answer("RemovePodSandbox", {"pod_sandbox_id": pod})

    assert await proxy.metric("governor_proxy_plugin_file_errors") == len(WRONG_FILES)
    assert await bed.client.answer("ListPodSandbox") == {}


@pytest.mark.parametrize("policy", ["", "Ignore", "Fail"])
async def test_d2_a_container_for_an_unknown_sandbox_is_rejected(
    bed: Bed, start_hook_plugin: StartHookPlugin, policy: str
) -> None:
    if policy:
        await hooked(bed, await start_hook_plugin(), failure_policy=policy)
    for request in ({"pod_sandbox_id": "unknown", "config": {}}, {}):
        assert (await bed.client.call("CreateContainer", request)).code == "NOT_FOUND"

    assert (await bed.client.call("Version")).code == "OK"
    assert len(await bed.runtime.received("CreateContainer")) == (0 if policy == "Fail" else 2)


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


async def test_d3_resources_are_set_in_a_pod_that_has_no_configuration(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"answer": {"resources": {"cpu_shares": "7"}, "cgroup_parent": "/other"}})
    await hooked(bed, plugin, hooks=["PreRunPodSandbox"])

    requests: list[Json] = [{}, {"config": {}}, {"config": {"metadata": {"name": "web"}}}]
    for request in requests:
        await bed.client.answer("RunPodSandbox", request)

        linux = (await last(bed.runtime, "RunPodSandbox")).request["config"]["linux"]
        assert linux == {"resources": {"cpu_shares": "7"}, "cgroup_parent": "/other"}


async def test_d3_resources_are_set_in_an_update_that_has_none(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    answer = {"container_resources": {"cpu_shares": "7"}}
    await hooked(bed, await start_hook_plugin({"method": "PreUpdateContainerResourcesHook", "answer": answer}))
    container = await create_container(bed, await run_pod(bed))

    await bed.client.answer("UpdateContainerResources", {"container_id": container})

    received = (await last(bed.runtime, "UpdateContainerResources")).request
    assert received == {"container_id": container, "linux": {"cpu_shares": "7"}}


async def test_d12_variables_keep_their_order_and_duplicates(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    names = ["Z", "A", "M", "A", "Z", "B"]
    variables = [{"key": name, "value": f"{number}".encode()} for number, name in enumerate(names)]
    answer = {"container_envs": {"NEW": "x", "A": "x"}}
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": answer})
    await hooked(bed, plugin)

    await create_container(bed, await run_pod(bed), envs=variables)

    config = (await last(bed.runtime, "CreateContainer")).request["config"]
    assert [each["key"] for each in config["envs"]] == [*names, "NEW"]
    assert [each["value"] for each in config["envs"]] == ["MA==", "MQ==", "Mg==", "eA==", "NA==", "NQ==", "eA=="]
    assert (await last(plugin, "PreCreateContainerHook")).request["container_envs"] == {
        "Z": "4",
        "A": "3",
        "M": "2",
        "B": "5",
    }


async def test_d22_fields_unset_by_a_plugin_are_not_reset(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    sent = {
        "cpu_shares": "100",
        "oom_score_adj": "-997",
        "cpuset_cpus": "0-1",
        "hugepage_limits": [{"page_size": "2MB", "limit": "4096"}, {"page_size": "1GB"}],
    }
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    pod = await run_pod(bed)
    for resources in ({}, {"memory_limit_in_bytes": "1000"}):
        answer = {"container_resources": resources, "container_annotations": {"by": "p"}}
        await plugin.set({"method": "PreCreateContainerHook", "answer": answer})

        await create_container(bed, pod, linux={"resources": sent})

        config = (await last(bed.runtime, "CreateContainer")).request["config"]
        assert config["annotations"] == {"by": "p"}
        assert config["linux"]["resources"] == {**sent, **resources}


async def test_d24_a_variable_that_is_not_utf8_is_kept(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    texts = {f"T{number}": "text" for number in range(3)}
    variables = [{"key": "RAW", "value": b"\xff\xfe"}, *({"key": key, "value": b"text"} for key in texts)]
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, failure_policy="Fail")
    pod = await run_pod(bed)
    for echo in (False, True):
        answer = {"container_annotations": {"by": "p"}}
        await plugin.set({"method": "PreCreateContainerHook", "answer": answer, "echo": echo})

        await create_container(bed, pod, envs=variables)

        config = (await last(bed.runtime, "CreateContainer")).request["config"]
        assert config["annotations"] == {"by": "p"}
        assert [each["value"] for each in config["envs"]] == ["//4=", "dGV4dA==", "dGV4dA==", "dGV4dA=="]
        assert (await last(plugin, "PreCreateContainerHook")).request["container_envs"] == texts


async def test_d15_fail_lets_no_call_through_while_the_plugin_is_down(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, name="guard", failure_policy="Fail")
    await plugin.kill()

    reply = await bed.client.call("RunPodSandbox", {"config": POD})

    assert reply.code == "UNAVAILABLE"
    assert reply.message.startswith("plugin guard rejected PreRunPodSandbox: plugin guard cannot be reached")
    assert await bed.runtime.received("RunPodSandbox") == []


async def test_d15_fail_lets_no_undecodable_call_through(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, name="guard", failure_policy="Fail")

    reply = await bed.client.call("/runtime.v1.RuntimeService/RunPodSandbox", raw=b"\xff\xff\xff")

    assert "plugin guard could not be called" in reply.message
    assert await bed.runtime.received("RunPodSandbox") == []


async def test_d15_fail_lets_no_call_through_for_an_unknown_container(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    await hooked(bed, await start_hook_plugin(), name="guard", failure_policy="Fail")
    for method in ("StartContainer", "UpdateContainerResources"):
        reply = await bed.client.call(method, {"container_id": "unknown"})

        assert reply.code == "NOT_FOUND"
        assert "plugin guard could not be called" in reply.message
        assert await bed.runtime.received(method) == []


async def test_d15_fail_lets_no_call_through_if_the_endpoint_is_not_a_socket(bed: Bed) -> None:
    bed.proxy.plugins.mkdir(parents=True, exist_ok=True)
    (bed.proxy.plugins / "no-socket").write_text("")
    file = f'{{"remote-endpoint": "{bed.proxy.plugins}/no-socket", "runtime-hooks": ["PreRunPodSandbox"]}}'
    (bed.proxy.plugins / "guard.json").write_text(file.replace("}", ', "failure-policy": "Fail"}'))
    await bed.proxy.wait_for_plugins(1)

    reply = await bed.client.call("RunPodSandbox", {"config": POD})

    assert reply.code == "UNAVAILABLE"
    assert await bed.runtime.received("RunPodSandbox") == []


async def test_d17_records_of_exited_containers_are_deleted_when_kubelet_removes_them(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    pod = await run_pod(bed)
    containers = [await create_container(bed, pod, metadata={"name": f"c-{number}"}) for number in range(10)]
    for each in containers:
        await bed.client.answer("StartContainer", {"container_id": each})
        await bed.runtime.exit(each)
    for each in containers[:5]:
        await bed.client.answer("RemoveContainer", {"container_id": each})
    assert await bed.proxy.metric('governor_proxy_records{kind="container"}') == 5

    await bed.client.answer("RemovePodSandbox", {"pod_sandbox_id": pod})

    assert await bed.proxy.metric('governor_proxy_records{kind="container"}') == 0
    assert await bed.proxy.metric('governor_proxy_records{kind="sandbox"}') == 0


async def test_d19_the_audit_log_names_plugin_pod_and_field_and_masks_the_environment(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    answer = {"container_envs": {"TOKEN": "s3cret"}, "container_resources": {"cpu_shares": "7"}}
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": answer})
    await hooked(bed, plugin)

    await create_container(bed, await run_pod(bed), envs=[{"key": "PASSWORD", "value": b"hunter2"}])

    [line] = await bed.proxy.wait_for_lines("plugins changed a call")
    lines = {each["field"]: {**line, **each} for each in line["changes"]}
    shares = lines["container_resources.cpu_shares"]
    assert (shares["plugin"], shares["pod"], shares["container"]) == ("p", "shop/web", "main")
    assert (shares["old"], shares["new"]) == (100, 7)
    assert lines["container_envs.TOKEN"]["new"] == "***"
    assert "s3cret" not in bed.proxy.logged()
    assert "hunter2" not in bed.proxy.logged()


async def test_d20_a_plugin_whose_file_is_deleted_is_not_called(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin()
    file = await hooked(bed, plugin)
    await run_pod(bed)
    file.unlink()
    await bed.proxy.wait_for_plugins(0)

    await run_pod(bed)

    assert len(await plugin.received("PreRunPodSandboxHook")) == 1


async def test_d20_a_running_plugin_call_survives_the_deletion_of_its_file(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    """The call in progress continues; the next one does not call the plugin."""
    plugin = await start_hook_plugin({"delay_s": 3})
    file = await hooked(bed, plugin, failure_policy="Fail", timeout=30, hooks=["PreRunPodSandbox"])
    other = await start_hook_plugin()
    await hooked(bed, other, name="q", hooks=ALL)
    async with bed.client.stream("RunPodSandbox", {"config": POD}) as call:

        async def is_called() -> bool:
            return await plugin.open_calls() == 1

        await until(is_called)
        file.unlink()
        await bed.proxy.wait_for_plugins(1)
        ended = await call.until(lambda progress: progress.code != "")
    await run_pod(bed)

    assert ended.code == "OK"
    assert len(await plugin.received("PreRunPodSandboxHook")) == 1
    assert len(await other.received("PreRunPodSandboxHook")) == 2


async def test_d23_a_record_is_kept_until_the_runtime_confirms_the_removal(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    container = await create_container(bed, await run_pod(bed))
    await bed.runtime.set({"status": {"code": "UNKNOWN", "message": "disk on fire"}})
    for method in ("StopContainer", "RemoveContainer"):
        assert (await bed.client.call(method, {"container_id": container})).code == "UNKNOWN"
    assert await plugin.received("PostStopContainerHook") == []
    assert await bed.proxy.metric('governor_proxy_records{kind="container"}') == 1
    await bed.runtime.set()

    await bed.client.answer("StopContainer", {"container_id": container})

    assert (await last(plugin, "PostStopContainerHook")).request["container_meta"]["id"] == container
