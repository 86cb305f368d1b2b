"""The runtime proxy with real containerds: plugins' changes to pods, and records rebuilt from the runtime."""

import os
import signal
from typing import Any

import pytest

from testbed.cri.client import V1, V1ALPHA2
from testbed.cri.control import Json
from testbed.cri.crictl import Crictl
from testbed.cri.fixtures import StartCriClient, StartHookPlugin
from testbed.cri.pods import Pod, container, sandbox
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import RealBed, StartProxy
from tests.integration.runtimeproxy.calls import ALL

CONTAINERDS = ["containerd", "containerd-2"]
RESOURCES = {
    "cpu_period": 100_000,
    "cpu_quota": 50_000,
    "cpu_shares": 100,
    "memory_limit_in_bytes": 1 << 26,
    "oom_score_adj": 500,
    "cpuset_cpus": "0",
    "cpuset_mems": "0",
}


def with_environment(**changes: Any) -> dict[str, Any]:
    envs = [{"key": "PLAIN", "value": b"abcd"}, {"key": "OTHER", "value": b"x y=z"}]
    return container("main", **{"envs": envs, "linux": {"resources": {"cpu_shares": 100}}, **changes})


@pytest.mark.parametrize(("recipe", "package"), [("containerd", V1), ("containerd", V1ALPHA2), ("containerd-2", V1)])
async def test_d16_plugins_set_cgroups_of_real_containers_in_both_cri_versions(
    package: str, real_bed: RealBed, start_hook_plugin: StartHookPlugin
) -> None:
    runtime, proxy, client = real_bed.runtime, real_bed.proxy, real_bed.client
    create = {"container_resources": {"cpu_shares": "512"}, "container_envs": {"PLUGIN": "was here"}}
    update = {"container_resources": {"cpu_shares": "1024"}}
    plugin = await start_hook_plugin(
        {"method": "PreCreateContainerHook", "answer": create},
        {"method": "PreUpdateContainerResourcesHook", "answer": update},
    )
    plugin.register(proxy.plugins, "p", ALL, failure_policy="Fail")
    await proxy.wait_for_plugins(1)
    pod = await Pod.run(client, sandbox("web", runtime.cgroup), package)
    name = await pod.create(with_environment())
    await pod.start(name)

    created = runtime.setting(name, "cpu.shares")
    printed = await Crictl(proxy.socket)("exec", name, "env")
    request = {"container_id": name, "linux": {"cpu_shares": 200}}
    await client.answer("UpdateContainerResources", request, package=package)
    updated = runtime.setting(name, "cpu.shares")
    await pod.stop(name)
    await pod.end()

    assert (created, updated) == ("512", "1024")
    assert "PLUGIN=was here" in printed.splitlines()
    called = [each.method.rpartition("/")[2].removesuffix("Hook") for each in await plugin.received()]
    assert sorted(called) == sorted(ALL)


@pytest.mark.parametrize(("recipe", "package"), [("containerd", V1), ("containerd", V1ALPHA2), ("containerd-2", V1)])
async def test_d18_a_restarted_proxy_rebuilds_all_records(
    package: str,
    real_bed: RealBed,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> None:
    """The hook request for an updated container and its pod is the same before and after ``kill -9``."""
    runtime = real_bed.runtime
    proxy = await start_proxy(runtime.socket)
    client = await start_cri_client(proxy.socket)
    plugin = await start_hook_plugin()
    plugin.register(proxy.plugins, "p", ALL)
    await proxy.wait_for_plugins(1)
    config = sandbox("web", runtime.cgroup, annotations={"note": "kept"})
    config["linux"]["resources"] = {"cpu_shares": 500, "cpu_period": 100_000, "memory_limit_in_bytes": 1 << 28}
    config["linux"]["overhead"] = {"cpu_shares": 5}
    pod = await Pod.run(client, config, package)
    name = await pod.create(with_environment(annotations={"own": "1"}, linux={"resources": RESOURCES}))
    await pod.start(name)
    updated = {"cpu_shares": 300, "memory_limit_in_bytes": 1 << 27}

    async def hook_request(**update: int) -> Json:
        request = {"container_id": name, "linux": update}
        await client.answer("UpdateContainerResources", request, wait_for_ready=True, package=package)
        return (await plugin.received("PreUpdateContainerResourcesHook"))[-1].request

    first = await hook_request(**updated)
    before = await hook_request(cpu_shares=300)
    started = (await plugin.received("PreRunPodSandboxHook"))[-1].request
    os.kill(proxy.pid, signal.SIGKILL)
    await proxy.wait_for_exit()
    await proxy.start()
    await proxy.wait_for_metric('governor_proxy_records{kind="container"}', 1)
    after = await hook_request(cpu_shares=300)
    await pod.end()
    stopped = (await plugin.received("PostStopPodSandboxHook"))[-1].request

    assert first == before
    assert before["container_resources"] == {
        key: value if isinstance(value, str) else str(value) for key, value in {**RESOURCES, **updated}.items()
    }
    assert after == before
    assert stopped == started


@pytest.mark.parametrize("recipe", CONTAINERDS)
async def test_d2_a_sandbox_created_around_the_proxy_is_sent_to_plugins(
    real_bed: RealBed, start_cri_client: StartCriClient, start_hook_plugin: StartHookPlugin
) -> None:
    runtime, proxy, client = real_bed.runtime, real_bed.proxy, real_bed.client
    plugin = await start_hook_plugin()
    plugin.register(proxy.plugins, "p", ["PreCreateContainer", "PostStopContainer"], failure_policy="Fail")
    await proxy.wait_for_plugins(1)
    direct = await start_cri_client(runtime.socket)
    pod = await Pod.run(direct, sandbox("web", runtime.cgroup, labels={"created": "directly"}))
    other = await pod.create(container("other"))

    await Pod(client, pod.id, pod.config).create(with_environment())
    await client.answer("StopContainer", {"container_id": other})

    created = (await plugin.received("PreCreateContainerHook"))[-1].request
    stopped = (await plugin.received("PostStopContainerHook"))[-1].request
    assert created["pod_labels"] == {"created": "directly"}
    assert stopped["container_meta"]["name"] == "other"
    await pod.end()


@pytest.mark.parametrize("recipe", CONTAINERDS)
async def test_d17_records_are_deleted_with_their_containers(
    real_bed: RealBed, start_hook_plugin: StartHookPlugin
) -> None:
    runtime, proxy, client = real_bed.runtime, real_bed.proxy, real_bed.client
    plugin = await start_hook_plugin()
    plugin.register(proxy.plugins, "p", ["PreRunPodSandbox"])
    await proxy.wait_for_plugins(1)
    pod = await Pod.run(client, sandbox("web", runtime.cgroup))
    name = await pod.create(container("short", "true"))
    await pod.start(name)
    await proxy.wait_for_metric('governor_proxy_records{kind="container"}', 1)

    async def has_ended() -> bool:
        status = await client.answer("ContainerStatus", {"container_id": name})
        return bool(status["status"]["state"] == "CONTAINER_EXITED")

    await until(has_ended)
    await pod.remove(name)
    await proxy.wait_for_metric('governor_proxy_records{kind="container"}', 0)
    await pod.create(container("another"))
    await pod.end()

    assert await proxy.metric('governor_proxy_records{kind="container"}') == 0
    assert await proxy.metric('governor_proxy_records{kind="sandbox"}') == 0
