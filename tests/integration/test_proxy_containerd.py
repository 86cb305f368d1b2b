"""The runtime proxy before real containerds: pods that plugins changed, and records rebuilt from the runtime."""

import os
import signal
from typing import Any

import pytest

from testbed.cri_client import V1, V1ALPHA2, CriClient
from testbed.cri_fixtures import StartCriClient, StartCriRuntime, StartHookPlugin
from testbed.cri_pods import Pod, container, sandbox
from testbed.cri_runtime import CriRuntime
from testbed.crictl import Crictl
from tests.integration.proxy_bed import RuntimeProxy, StartProxy

CONTAINERDS = ["containerd", "containerd-2"]


@pytest.fixture(params=CONTAINERDS)
async def runtime(request: pytest.FixtureRequest, start_cri_runtime: StartCriRuntime) -> CriRuntime:
    return await start_cri_runtime(request.param)


@pytest.fixture
async def proxy(runtime: CriRuntime, start_proxy: StartProxy) -> RuntimeProxy:
    return await start_proxy(runtime.socket)


@pytest.fixture
async def client(proxy: RuntimeProxy, start_cri_client: StartCriClient) -> CriClient:
    return await start_cri_client(proxy.socket)


def with_environment(**changes: Any) -> dict[str, Any]:
    envs = [{"key": "PLAIN", "value": b"abcd"}, {"key": "OTHER", "value": b"x y=z"}]
    return container("main", envs=envs, linux={"resources": {"cpu_shares": 100}}, **changes)


async def test_plugins_decide_cgroups_of_real_containers(
    runtime: CriRuntime, proxy: RuntimeProxy, client: CriClient, start_hook_plugin: StartHookPlugin
) -> None:
    create = {"container_resources": {"cpu_shares": "512"}, "container_envs": {"PLUGIN": "was here"}}
    update = {"container_resources": {"cpu_shares": "1024"}}
    plugin = await start_hook_plugin(
        {"method": "PreCreateContainerHook", "answer": create},
        {"method": "PreUpdateContainerResourcesHook", "answer": update},
    )
    plugin.register(proxy.plugins, "p", ["PreCreateContainer", "PreUpdateContainerResources"])
    await proxy.knows(1)
    pod = await Pod.run(client, sandbox("web", runtime.cgroup))
    name = await pod.create(with_environment())
    await pod.start(name)

    created = runtime.setting(name, "cpu.shares")
    printed = await Crictl(proxy.socket)("exec", name, "env")
    await client.answer("UpdateContainerResources", {"container_id": name, "linux": {"cpu_shares": 200}})

    assert created == "512"
    assert "PLUGIN=was here" in printed.splitlines()
    assert runtime.setting(name, "cpu.shares") == "1024"
    await pod.end()


@pytest.mark.parametrize("package", [V1, V1ALPHA2])
async def test_d18_a_restarted_proxy_knows_all_of_pods_and_containers(
    start_cri_runtime: StartCriRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
    package: str,
) -> None:
    runtime = await start_cri_runtime("containerd" if package == V1ALPHA2 else "containerd-2")
    proxy = await start_proxy(runtime.socket)
    client = await start_cri_client(proxy.socket)
    plugin = await start_hook_plugin()
    plugin.register(proxy.plugins, "p", ["PreCreateContainer", "PreStartContainer"])
    await proxy.knows(1)
    config = sandbox("web", runtime.cgroup, annotations={"note": "kept"})
    pod = await Pod.run(client, config, package)
    name = await pod.create(with_environment())
    asked = (await plugin.received("PreCreateContainerHook"))[-1].request
    os.kill(proxy.pid, signal.SIGKILL)
    await proxy.wait_for_exit()
    await proxy.start()
    await proxy.metric_becomes('governor_proxy_records{kind="container"}', 1)

    await client.answer("StartContainer", {"container_id": name}, wait_for_ready=True, package=package)

    known = (await plugin.received("PreStartContainerHook"))[-1].request
    for field in ("pod_meta", "container_envs", "pod_labels", "pod_annotations", "pod_cgroup_parent"):
        assert known[field] == asked[field], field
    assert known["container_resources"]["cpu_shares"] == asked["container_resources"]["cpu_shares"] == "100"
    assert known["container_meta"] == {**asked["container_meta"], "id": name}
    await pod.end()


async def test_d2_a_sandbox_made_behind_the_proxy_is_known_to_plugins(
    runtime: CriRuntime,
    proxy: RuntimeProxy,
    client: CriClient,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> None:
    plugin = await start_hook_plugin()
    plugin.register(proxy.plugins, "p", ["PreCreateContainer", "PostStopContainer"], failure_policy="Fail")
    await proxy.knows(1)
    behind = await start_cri_client(runtime.socket)
    pod = await Pod.run(behind, sandbox("web", runtime.cgroup, labels={"made": "behind"}))
    other = await pod.create(container("other"))

    await Pod(client, pod.id, pod.config).create(with_environment())
    await client.answer("StopContainer", {"container_id": other})

    created = (await plugin.received("PreCreateContainerHook"))[-1].request
    stopped = (await plugin.received("PostStopContainerHook"))[-1].request
    assert created["pod_labels"] == {"made": "behind"}
    assert stopped["container_meta"]["name"] == "other"
    await pod.end()


async def test_d17_records_go_with_what_they_describe(
    runtime: CriRuntime, proxy: RuntimeProxy, client: CriClient, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    plugin.register(proxy.plugins, "p", ["PreRunPodSandbox"])
    await proxy.knows(1)
    pod = await Pod.run(client, sandbox("web", runtime.cgroup))
    name = await pod.create(container("short", "true"))
    await pod.start(name)
    await proxy.metric_becomes('governor_proxy_records{kind="container"}', 1)
    await pod.remove(name)
    await proxy.metric_becomes('governor_proxy_records{kind="container"}', 0)
    await pod.create(container("another"))
    await pod.end()

    assert await proxy.metric('governor_proxy_records{kind="container"}') == 0
    assert await proxy.metric('governor_proxy_records{kind="sandbox"}') == 0


async def test_crictl_works_unmodified_through_the_proxy(
    runtime: CriRuntime, proxy: RuntimeProxy, client: CriClient, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    plugin.register(proxy.plugins, "p", ["PreRunPodSandbox"])
    await proxy.knows(1)
    crictl = Crictl(proxy.socket)
    logs = runtime.directory / "logs"
    pod = await Pod.run(client, sandbox("web", runtime.cgroup, log_directory=str(logs)))
    name = await pod.create(container("main", "sh", "-c", "echo hello; sleep infinity", log_path="main.log"))
    await pod.start(name)

    assert "containerd" in await crictl("version")
    assert pod.id in await crictl("pods", "--no-trunc")
    assert (await crictl("exec", name, "echo", "from inside")).strip() == "from inside"
    assert (await crictl("logs", name)).strip() == "hello"
    await pod.end()
