"""Resources that cannot be checked in cgroup files here: unified, huge pages and swap, as the runtime receives them."""

import json

import pytest

from testbed.cri.control import Json
from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.pods import Pod, container, sandbox
from tests.integration.runtimeproxy.bed import Bed, RealBed
from tests.integration.runtimeproxy.calls import create_container, hooked, last, run_pod

SENT: Json = {
    "cpu_shares": "100",
    "memory_limit_in_bytes": "67108864",
    "memory_swap_limit_in_bytes": "134217728",
    "hugepage_limits": [{"page_size": "2MB", "limit": "4194304"}, {"page_size": "1GB"}],
    "unified": {"memory.high": "60000000", "cpu.weight": "7"},
}
ANSWERED: Json = {
    "memory_swap_limit_in_bytes": "100663296",
    "hugepage_limits": [{"page_size": "1GB", "limit": "1073741824"}, {"page_size": "64KB", "limit": "65536"}],
    "unified": {"memory.high": "50000000", "io.weight": "default 50"},
}
RECEIVED: Json = {
    "cpu_shares": "100",
    "memory_limit_in_bytes": "67108864",
    "memory_swap_limit_in_bytes": "100663296",
    "hugepage_limits": [
        {"page_size": "2MB", "limit": "4194304"},
        {"page_size": "1GB", "limit": "1073741824"},
        {"page_size": "64KB", "limit": "65536"},
    ],
    "unified": {"memory.high": "50000000", "cpu.weight": "7", "io.weight": "default 50"},
}


@pytest.mark.parametrize("echo", [False, True])
async def test_unified_huge_pages_and_swap_reach_plugins_and_runtime_entry_by_entry(
    bed: Bed, start_hook_plugin: StartHookPlugin, *, echo: bool
) -> None:
    """A pod, a container and an update, with plugins that return only what they set, and with plugins that echo."""
    whole = RECEIVED if echo else ANSWERED
    plugin = await start_hook_plugin(
        {"method": "PreRunPodSandboxHook", "answer": {"resources": whole}},
        {"answer": {"container_resources": whole}},
    )
    await hooked(bed, plugin, failure_policy="Fail")

    pod = await run_pod(bed, linux={"resources": SENT})
    one = await create_container(bed, pod, linux={"resources": SENT})
    await bed.client.answer("UpdateContainerResources", {"container_id": one, "linux": {"unified": {"pids.max": "9"}}})

    sent = await last(plugin, "PreCreateContainerHook")
    assert sent.request["container_resources"] == SENT
    assert sent.request["pod_resources"] == RECEIVED
    pod_received = (await last(bed.runtime, "RunPodSandbox")).request["config"]["linux"]["resources"]
    received = (await last(bed.runtime, "CreateContainer")).request["config"]["linux"]["resources"]
    assert pod_received == received == RECEIVED
    # The record already has the plugin's values, so the update stays partial.
    assert (await last(bed.runtime, "UpdateContainerResources")).request["linux"] == {"unified": {"pids.max": "9"}}
    updated = (await last(plugin, "PreUpdateContainerResourcesHook")).request["container_resources"]
    assert updated == {**RECEIVED, "unified": {**RECEIVED["unified"], "pids.max": "9"}}


@pytest.mark.parametrize("recipe", ["containerd", "containerd-2"])
async def test_unified_and_swap_set_by_a_plugin_reach_the_spec_of_a_real_container(
    real_bed: RealBed, start_hook_plugin: StartHookPlugin
) -> None:
    runtime, proxy, client = real_bed.runtime, real_bed.proxy, real_bed.client
    answer = {"memory_swap_limit_in_bytes": str(1 << 28), "unified": {"memory.high": "50000000"}}
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": {"container_resources": answer}})
    plugin.register(proxy.plugins, "p", ["PreCreateContainer"], failure_policy="Fail")
    await proxy.wait_for_plugins(1)
    pod = await Pod.run(client, sandbox("web", runtime.cgroup))

    resources = {"memory_limit_in_bytes": 1 << 27, "unified": {"pids.max": "9"}}
    name = await pod.create(container("main", linux={"resources": resources}))

    status = await client.answer("ContainerStatus", {"container_id": name, "verbose": True})
    spec = json.loads(status["info"]["info"])["runtimeSpec"]["linux"]["resources"]
    assert spec["unified"] == {"pids.max": "9", "memory.high": "50000000"}
    assert (spec["memory"]["limit"], spec["memory"]["swap"]) == (1 << 27, 1 << 28)
    await pod.end()
