"""``governor runtime-proxy explain`` with a running proxy and a fake runtime."""

import json
import stat
from typing import Any

import aiohttp
import pytest

from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.pods import Pod, container, sandbox
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed, RealBed
from tests.integration.runtimeproxy.calls import CONTAINER, POD, create_container, hooked, run_pod
from tests.integration.runtimeproxy.command_line import runtime_proxy


async def explained(bed: Bed, pod: str) -> Any:
    outcome = await runtime_proxy(bed.proxy, "explain", pod, "-o", "json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def entries(found: Any, hook: str) -> dict[str, Any]:
    [plugins] = [each["plugins"] for each in found["hooks"] if each["hook"] == hook]
    return {each["plugin"]: each for each in plugins}


async def test_a_pod_is_explained_with_the_plugins_changes(own_bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin(
        {"method": "PreRunPodSandboxHook", "answer": {"cgroup_parent": "/other", "annotations": {"by": "p"}}},
        {
            "method": "PreCreateContainerHook",
            "answer": {"container_resources": {"cpu_shares": "512"}, "container_envs": {"TOKEN": "secret-value"}},
        },
    )
    await hooked(own_bed, plugin, name="tuner", timeout="20500ms", failure_policy="Fail")
    pod = await run_pod(own_bed)
    created = await create_container(own_bed, pod)

    found = await explained(own_bed, "shop/web")

    [shown] = found["sandboxes"]
    assert (shown["id"], shown["uid"], shown["cgroup_parent"]) == (pod, "u-1", "/other")
    [own] = shown["containers"]
    assert (own["id"], own["name"], own["resources"]["cpu_shares"]) == (created, "main", 512)
    assert own["environment"] == ["A", "B", "TOKEN"]
    entry = entries(found, "PreCreateContainer")["tuner"]
    assert (entry["asked"], entry["timeout_s"], entry["policy"]) == (True, 20.5, "Fail")
    changes = {".".join(each["path"]): each for trail in found["trails"] for each in trail["changes"]}
    assert changes["cgroup_parent"] == {
        "plugin": "tuner",
        "path": ["cgroup_parent"],
        "old": "/pods/u-1",
        "new": "/other",
    }
    assert changes["container_resources.cpu_shares"]["old"] == 100
    assert changes["container_envs.TOKEN"]["new"] == "***"
    text = (await runtime_proxy(own_bed.proxy, "explain", pod[:8])).out
    for word in ("Pod shop/web", "/other", "tuner", "container_resources.cpu_shares", "PreStartContainer"):
        assert word in text
    assert "secret-value" not in text + json.dumps(found)


async def test_plugins_that_are_not_called_are_shown_with_the_reason(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, name="other-app", selector={"matchLabels": {"app": "db"}})
    await hooked(bed, plugin, name="one-hook", hooks=["PreStartContainer"], order=-1)
    (bed.proxy.plugins / "broken.json").write_text("{")
    await bed.proxy.wait_for_metric("governor_proxy_plugin_file_errors", 1)
    await run_pod(bed)

    found = await explained(bed, "shop/web")

    run = entries(found, "PreRunPodSandbox")
    assert not any(each["asked"] for each in run.values())
    assert run["other-app"]["why"] == "its selector does not match: label app must be 'db' but is 'web'"
    assert run["one-hook"]["why"] == "the hook is not in its runtime-hooks"
    assert entries(found, "PreStartContainer")["one-hook"]["asked"]
    assert found["labels_that_matter"] == ["app", "runtimeproxy.koordinator.sh/skip-hookserver"]
    assert any("broken.json" in each for each in found["problems"])


async def test_a_pod_that_opts_out_is_shown_with_the_reason(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    await hooked(bed, await start_hook_plugin())
    await run_pod(bed, annotations={"runtimeproxy.koordinator.sh/skip-hookserver": "true"})

    found = await explained(bed, "shop/web")

    assert found["skipped"] == "the pod has the annotation runtimeproxy.koordinator.sh/skip-hookserver=true"
    assert entries(found, "PreStartContainer")["p"]["why"] == found["skipped"]


async def test_a_rejected_pod_can_be_explained_afterwards(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    status = {"code": "PERMISSION_DENIED", "message": "no room on these cores"}
    plugin = await start_hook_plugin({"method": "PreRunPodSandboxHook", "status": status})
    await hooked(bed, plugin, name="strict", failure_policy="Fail")
    pod = {**POD, "metadata": {"name": "rejected", "uid": "u-rejected", "namespace": "shop"}}
    assert (await bed.client.call("RunPodSandbox", {"config": pod})).code == "PERMISSION_DENIED"

    found = await explained(bed, "u-rejected")

    [trail] = found["trails"]
    assert trail["refusal"] == "plugin strict rejected PreRunPodSandbox: no room on these cores"
    assert [(each["plugin"], each["error"]) for each in trail["asked"]] == [("strict", "no room on these cores")]
    text = (await runtime_proxy(bed.proxy, "explain", "rejected")).out
    assert "It has no sandbox" in text
    assert "no room on these cores" in text


async def test_a_rejected_pod_can_be_explained_while_the_runtime_is_down(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"status": {"code": "PERMISSION_DENIED", "message": "no room"}})
    await hooked(own_bed, plugin, name="strict", failure_policy="Fail")
    await own_bed.client.call("RunPodSandbox", {"config": POD})
    await own_bed.runtime.kill()

    found = await explained(own_bed, "web")
    text = (await runtime_proxy(own_bed.proxy, "explain", "web")).out

    assert found["trails"][0]["refusal"] == "plugin strict rejected PreRunPodSandbox: no room"
    assert found["unasked"]
    assert "the runtime could not be queried" in text
    assert "It has no sandbox" not in text


async def test_an_error_of_the_runtime_is_unavailable_whatever_its_code(bed: Bed) -> None:
    for code in ("UNAVAILABLE", "UNAUTHENTICATED"):
        await bed.runtime.set({"method": "ListPodSandbox", "status": {"code": code, "message": "not now"}})

        outcome = await runtime_proxy(bed.proxy, "explain", "web")

        assert (outcome.code, outcome.err) == (11, "error: the runtime could not be queried: not now\n"), code


async def test_a_hanging_plugin_is_shown_with_an_open_circuit(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, timeout="50ms", hooks=["PreRunPodSandbox"])

    async def is_open() -> bool:
        await run_pod(bed)
        [entry] = entries(await explained(bed, "shop/web"), "PreRunPodSandbox").values()
        return entry["asked"] and "has been open since" in entry.get("why", "")

    await bed.client.repeat("RunPodSandbox", {"config": POD}, count=5)
    await until(is_open)  # retries become rarer, so one explain finally falls between two of them


async def test_without_plugins_the_runtime_is_queried(bed: Bed) -> None:
    await create_container(bed, await run_pod(bed))

    found = await explained(bed, "shop/web")
    text = (await runtime_proxy(bed.proxy, "explain", "shop/web")).out

    assert not found["kept"]
    assert found["sandboxes"][0]["containers"][0]["name"] == CONTAINER["metadata"]["name"]
    assert "No plugin is registered, so the proxy keeps no records" in text
    assert await bed.proxy.metric('governor_proxy_records{kind="sandbox"}') == 0


@pytest.mark.parametrize("gone", ["ContainerStatus", "PodSandboxStatus"])
async def test_what_is_removed_during_the_query_is_left_out(gone: str, bed: Bed) -> None:
    metadata = {"name": "removed", "uid": "u-removed", "namespace": "shop"}
    await create_container(bed, await run_pod(bed, metadata=metadata))
    await bed.runtime.set({"method": gone, "status": {"code": "NOT_FOUND", "message": "gone"}})

    outcome = await runtime_proxy(bed.proxy, "explain", "removed", "-o", "json")

    if gone == "ContainerStatus":
        assert "containers" not in json.loads(outcome.out)["sandboxes"][0]
    else:
        assert outcome.code == 4
        assert outcome.err == "error: pod shop/removed is unknown to the runtime proxy and to the runtime\n"


async def test_an_ambiguous_name_is_rejected_with_all_matches(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    await hooked(bed, await start_hook_plugin())
    for namespace in ("shop", "test"):
        await run_pod(bed, metadata={"name": "twin", "uid": f"u-{namespace}", "namespace": namespace})

    ambiguous = await runtime_proxy(bed.proxy, "explain", "twin")
    unknown = await runtime_proxy(bed.proxy, "explain", "unknown")

    assert ambiguous.code == 3
    assert "shop/twin (uid u-shop)" in ambiguous.err
    assert "test/twin (uid u-test)" in ambiguous.err
    assert (unknown.code, "no pod 'unknown' found" in unknown.err) == (4, True)
    assert (await explained(bed, "test/twin"))["sandboxes"][0]["uid"] == "u-test"


async def test_the_control_socket_is_private_and_removed_with_the_proxy(own_bed: Bed) -> None:
    control = own_bed.proxy.socket.with_name("proxy-control.sock")
    mode = stat.S_IMODE(control.stat().st_mode)

    await own_bed.proxy.stop()
    outcome = await own_bed.proxy.run_command("explain", "web")

    assert mode == 0o600
    assert not control.exists()
    assert outcome.code == 11
    assert f"no runtime proxy responds on {control}" in outcome.err


async def test_a_socket_that_is_not_a_control_socket_is_reported(bed: Bed) -> None:
    kubelet_socket = bed.proxy.socket
    flags = f"--koord-runtimeproxy-endpoint={kubelet_socket}.other", f"--control-endpoint={kubelet_socket}"

    outcome = await runtime_proxy(bed.proxy, *flags, "explain", "web")

    assert outcome.code == 14
    assert outcome.err == f"error: {kubelet_socket} is not the control socket of a runtime proxy of this version\n"


async def test_an_unknown_filter_field_is_rejected(bed: Bed) -> None:
    control = bed.proxy.socket.with_name("proxy-control.sock")
    connector = aiohttp.UnixConnector(str(control))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://proxy/v1/calls?pods=web") as answer,
    ):
        assert (answer.status, "unknown field `pods`" in await answer.text()) == (400, True)


async def test_without_a_control_socket_the_proxy_still_serves(own_bed: Bed) -> None:
    control = own_bed.proxy.socket.with_name("proxy-control.sock")
    await own_bed.proxy.stop()
    control.write_text("precious")

    await own_bed.proxy.start()

    assert (await own_bed.client.call("Version", wait_for_ready=True)).code == "OK"
    assert control.read_text() == "precious"
    assert len(own_bed.proxy.lines("explain, tap and upgrade are unavailable")) == 1


@pytest.mark.parametrize("recipe", ["containerd", "containerd-2"])
async def test_a_pod_without_records_is_explained_from_real_runtimes(
    real_bed: RealBed,
) -> None:
    runtime, proxy, client = real_bed.runtime, real_bed.proxy, real_bed.client
    pod = await Pod.run(client, sandbox("unrecorded", runtime.cgroup))
    name = await pod.create(container("main", linux={"resources": {"cpu_shares": 100}}))

    outcome = await runtime_proxy(proxy, "explain", "unrecorded", "-o", "json")
    await pod.end()

    [shown] = json.loads(outcome.out)["sandboxes"]
    [own] = shown["containers"]
    assert (shown["id"], shown["labels"]["app"]) == (pod.id, "unrecorded")
    assert shown["cgroup_parent"] == f"/{runtime.cgroup}/unrecorded"
    assert (own["id"], own["name"], own["resources"]["cpu_shares"]) == (name, "main", 100)
