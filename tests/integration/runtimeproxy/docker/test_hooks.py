"""Hooks of a proxy in Docker mode: what plugins receive, and what dockerd and the kernel have then."""

from typing import Any

import pytest

from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.peers import HookPlugin
from testbed.docker.engine import EngineError
from testbed.waiting import until
from tests.integration.runtimeproxy.calls import ALL
from tests.integration.runtimeproxy.command_line import runtime_proxy
from tests.integration.runtimeproxy.docker.bed import IDENTITY, DockerBed
from tests.integration.runtimeproxy.test_policies import write


async def hooked(bed: DockerBed, plugin: HookPlugin, name: str = "p", **more: Any) -> None:
    """Register a plugin, by default for all hooks, and wait until the proxy uses it."""
    before = len(list(bed.proxy.plugins.glob("*.json"))) if bed.proxy.plugins.exists() else 0
    plugin.register(bed.proxy.plugins, name, more.pop("hooks", ALL), **more)
    await bed.proxy.wait_for_plugins(before + 1)


async def received(plugin: HookPlugin) -> list[str]:
    """Return the methods of all calls that a plugin has received, without their suffix."""
    return [each.method.rpartition("/")[2].removesuffix("Hook") for each in await plugin.received()]


async def test_every_operation_calls_its_hooks_with_the_pod_and_the_container(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin)
    engine = docker_bed.engine

    sandbox = await docker_bed.create_sandbox()
    await engine("POST", f"/containers/{sandbox}/start")
    made = await docker_bed.create_container(sandbox, Env=["A=1", "B"], HostConfig={"CpuShares": 512})
    await engine("POST", f"/containers/{made}/start")
    await engine("POST", f"/containers/{made}/update", {"CpuShares": 256})
    await engine("POST", f"/containers/{made}/restart", query={"t": "0"})
    await engine("POST", f"/containers/{made}/kill", query={"signal": "HUP"})
    await engine("POST", f"/containers/{made}/kill")
    await engine("POST", f"/containers/{sandbox}/stop", query={"t": "0"})
    await engine("DELETE", f"/containers/{made}")
    await engine("DELETE", f"/containers/{sandbox}")

    assert await received(plugin) == [
        "PreRunPodSandbox",
        "PreCreateContainer",
        *("PreStartContainer", "PostStartContainer"),
        "PreUpdateContainerResources",
        *("PreStartContainer", "PostStartContainer"),
        "PostStopContainer",
        "PostStopPodSandbox",
    ]
    calls = {each.method.rpartition("/")[2]: each.request for each in await plugin.received()}
    pod = calls["PreRunPodSandboxHook"]
    assert pod["pod_meta"] == {"name": "web", "uid": "uid-1", "namespace": "shop"}
    assert pod["labels"] == {**IDENTITY, "app": "web"}
    assert pod["annotations"] == {"checksum": "1"}
    assert pod["cgroup_parent"] == f"/{docker_bed.dockerd.cgroup}"
    created = calls["PreCreateContainerHook"]
    assert created["container_meta"]["name"] == "app"
    assert created["container_envs"] == {"A": "1"}
    assert created["container_resources"]["cpu_shares"] == "512"
    assert created["pod_labels"] == {**IDENTITY, "app": "web"}
    stopped = calls["PostStopContainerHook"]
    assert stopped["container_meta"]["id"] == made
    assert stopped["container_resources"]["cpu_shares"] == "256"
    assert await docker_bed.proxy.metric('governor_proxy_records{kind="container"}') == 0
    assert await docker_bed.proxy.metric('governor_proxy_records{kind="sandbox"}') == 0


async def test_changes_of_plugins_reach_dockerd_and_the_kernel_and_nothing_else_changes(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin(
        {"method": "PreRunPodSandboxHook", "answer": {"labels": {"by": "p"}, "annotations": {"note": "p"}}},
        {
            "method": "PreCreateContainerHook",
            "answer": {
                "container_annotations": {"note": "p"},
                "container_resources": {"cpu_shares": "300"},
                "container_envs": {"A": "2", "C": "3"},
            },
        },
        {"method": "PreUpdateContainerResourcesHook", "answer": {"container_resources": {"cpu_quota": "50000"}}},
    )
    await hooked(docker_bed, plugin)
    memory, given = 64 * 2**20, ["A=1", "EMPTY=", "PATH", "A=1b"]

    sandbox = await docker_bed.create_sandbox()
    made = await docker_bed.create_container(
        sandbox,
        Env=given,
        StopSignal="SIGKILL",
        HostConfig={"CpuShares": 512, "Memory": memory, "OomScoreAdj": 7, "ShmSize": 2**20, "CpuPeriod": 50_000},
    )
    await docker_bed.engine("POST", f"/containers/{made}/start")
    await docker_bed.engine("POST", f"/containers/{made}/update", {"CpuShares": 400, "RestartPolicy": {"Name": "no"}})

    labels = (await docker_bed.inspect(sandbox))["Config"]["Labels"]
    assert (labels["by"], labels["annotation.note"], labels["annotation.checksum"]) == ("p", "p", "1")
    found = await docker_bed.inspect(made)
    host, config = found["HostConfig"], found["Config"]
    kept = {"Memory": memory, "OomScoreAdj": 7, "ShmSize": 2**20, "CpuPeriod": 50_000, "CpuShares": 400}
    assert {name: host[name] for name in kept} == kept
    assert host["CpuQuota"] == 50_000
    assert config["StopSignal"] == "SIGKILL"
    assert config["Labels"]["annotation.note"] == "p"
    assert [each for each in config["Env"] if not each.startswith("PATH")] == ["A=1", "EMPTY=", "A=2", "C=3"]
    assert docker_bed.dockerd.setting(made, "cpu.shares") == "400"
    assert docker_bed.dockerd.setting(made, "cpu.cfs_quota_us") == "50000"


async def test_a_rejection_is_an_error_of_the_engine_api_and_nothing_is_created(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin(
        {"method": "PreRunPodSandboxHook", "status": {"code": "UNAVAILABLE", "message": "full"}}
    )
    await hooked(docker_bed, plugin, failure_policy="Fail")

    with pytest.raises(EngineError, match=r"503: .*message.*plugin p rejected PreRunPodSandbox: .*full"):
        await docker_bed.create_sandbox()

    assert await docker_bed.direct("GET", "/containers/json", query={"all": "1"}) == []
    outcome = await docker_bed.cli.outcome(
        "create", "--label=io.kubernetes.docker.type=podsandbox", "--label=io.kubernetes.pod.name=web", "busybox"
    )
    assert outcome.code != 0
    assert "plugin p rejected PreRunPodSandbox" in outcome.err


async def test_a_container_rejected_after_its_start_is_stopped(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin(
        {"method": "PostStartContainerHook", "status": {"code": "INTERNAL", "message": "no"}}
    )
    await hooked(docker_bed, plugin, failure_policy="Fail")
    made = await docker_bed.create_container(await docker_bed.create_sandbox())

    with pytest.raises(EngineError, match="the container was stopped"):
        await docker_bed.engine("POST", f"/containers/{made}/start")

    assert (await docker_bed.inspect(made))["State"]["Running"] is False
    assert (await received(plugin))[-1] == "PostStopContainer"


async def test_a_container_that_is_not_of_kubernetes_passes_without_hooks(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin(
        {"method": "PreCreateContainerHook", "status": {"code": "INTERNAL", "message": "no"}}
    )
    await hooked(docker_bed, plugin, failure_policy="Fail")

    name = await docker_bed.cli("run", "-d", "--network=none", docker_bed.dockerd.image, "-c", "exec sleep 1000")
    await docker_bed.cli("update", "--cpu-shares=128", name)
    await docker_bed.cli("rm", "--force", name)

    assert await received(plugin) == []


async def test_a_container_that_exited_by_itself_is_reported_when_it_is_stopped(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin, hooks=["PostStopContainer"])
    made = await docker_bed.create_container(await docker_bed.create_sandbox(), Cmd=["-c", "exit 3"])
    await docker_bed.engine("POST", f"/containers/{made}/start")
    await docker_bed.engine("POST", f"/containers/{made}/wait")

    async with docker_bed.engine.stream("POST", f"/containers/{made}/stop") as response:
        assert response.status == 304

    assert await received(plugin) == ["PostStopContainer"]


async def test_records_come_from_dockerd_after_a_restart_of_the_proxy(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    sandbox = await docker_bed.create_sandbox(HostConfig={"CpuShares": 2})
    made = await docker_bed.create_container(sandbox, Env=["A=1"], HostConfig={"CpuShares": 512, "Memory": 2**26})
    other = await docker_bed.create_container(
        sandbox, name="k8s_side.car_web_shop_uid-1_2_9f3a", labels={"io.kubernetes.container.name": ""}
    )
    await docker_bed.proxy.kill()
    plugin = await start_hook_plugin()
    plugin.register(docker_bed.proxy.plugins, "p", ALL)
    await docker_bed.proxy.start()
    await docker_bed.proxy.wait_for_metric('governor_proxy_records{kind="container"}', 2)

    await docker_bed.engine("POST", f"/containers/{made}/start")
    await docker_bed.engine("POST", "/containers/k8s_side.car_web_shop_uid-1_2_9f3a/start")

    first, second = [each.request for each in await plugin.received("PreStartContainerHook")]
    assert first["container_resources"] == {"cpu_shares": "512", "memory_limit_in_bytes": str(2**26)}
    assert first["pod_labels"] == {**IDENTITY, "app": "web"}
    assert second["container_meta"] == {"name": "side.car", "attempt": 2, "id": other}
    await docker_bed.direct("DELETE", f"/containers/{made}", query={"force": "1"})

    async def is_refused() -> bool:
        try:
            await docker_bed.engine("POST", f"/containers/{made}/start")
        except EngineError as error:
            return error.status == 404
        return False

    assert await is_refused()


async def test_a_plugin_that_was_away_is_notified_late_and_receives_what_exists(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin, hooks=["PostStopContainer"], synchronize=True)
    sandbox = await docker_bed.create_sandbox()
    made = await docker_bed.create_container(sandbox)
    await docker_bed.engine("POST", f"/containers/{made}/start")
    await plugin.kill()
    await docker_bed.engine("POST", f"/containers/{made}/stop", query={"t": "0"})
    await plugin.start()

    async def is_notified() -> bool:
        return "PostStopContainer" in await received(plugin)

    await until(is_notified)
    methods = await received(plugin)
    assert "Synchronize" in methods
    late = 'governor_proxy_late_notifications_total{plugin="p",hook="PostStopContainer"}'
    await docker_bed.proxy.wait_for_metric(late, 1)


async def test_policies_apply_and_what_docker_cannot_carry_is_reported(docker_bed: DockerBed) -> None:
    given = "{cpuShares: 2, oomScoreAdj: 500, mounts: [{hostPath: /etc, containerPath: /host, readOnly: true}]"
    spec = f"container: {{set: {given}, hugepageLimits: {{2MB: 1048576}}}}, scale: {{cpuQuota: 0.5}}}}"
    write(docker_bed.proxy, "batch", f"{{match: {{namespaces: [shop]}}, {spec}}}")
    await docker_bed.proxy.wait_for_policies(1)

    sandbox = await docker_bed.create_sandbox()
    made = await docker_bed.create_container(sandbox, HostConfig={"CpuQuota": 80_000, "Binds": ["/tmp:/tmp:ro"]})
    await docker_bed.engine("POST", f"/containers/{made}/start")

    host = (await docker_bed.inspect(made))["HostConfig"]
    assert (host["CpuShares"], host["OomScoreAdj"], host["CpuQuota"]) == (2, 500, 40_000)
    assert host["Binds"] == ["/tmp:/tmp:ro", "/etc:/host:ro"]
    [line] = await docker_bed.proxy.wait_for_lines("plugins changed a call")
    assert any("container_resources.hugepage_limits" in each for each in line["unused"])
    explained = (await runtime_proxy(docker_bed.proxy, "explain", "shop/web")).out
    assert "Changed by plugins" in explained
    assert "cpu_shares=2" in explained


async def test_a_tap_shows_requests_without_their_queries(docker_bed: DockerBed) -> None:
    running = await docker_bed.proxy.start_command("tap", "--count=2", "-o", "json")

    async def is_open() -> bool:
        return await docker_bed.proxy.metric("governor_proxy_taps") == 1

    await until(is_open)
    await docker_bed.engine("GET", "/containers/json", query={"all": "1", "filters": "{}"})
    with pytest.raises(EngineError):
        await docker_bed.engine("GET", "/containers/nothing/json")

    outcome = await running.ended()
    assert '"path":"GET /containers/json"' in outcome.out
    assert '"status":"404 Not Found"' in outcome.out
    assert "filters" not in outcome.out


async def test_a_prefix_of_an_id_and_a_name_mean_the_same_container(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin, hooks=["PreStartContainer", "PostStopContainer"])
    made = await docker_bed.create_container(await docker_bed.create_sandbox())

    await docker_bed.cli("start", made[:12])
    await docker_bed.cli("kill", "k8s_app_web_shop_uid-1_0")

    assert {each.request["container_meta"]["id"] for each in await plugin.received()} == {made}
    assert await received(plugin) == ["PreStartContainer", "PostStopContainer"]
