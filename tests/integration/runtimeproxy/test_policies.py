"""Policies in a running proxy: what the runtime receives, dry runs, reloading, and values in real cgroups."""

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.cri.crictl import Crictl
from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.pods import Pod, container, sandbox
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed, RealBed
from tests.integration.runtimeproxy.calls import create_container, hooked, last, run_pod
from tests.integration.runtimeproxy.command_line import runtime_proxy

BATCH = "{match: {namespaces: [shop]}, container: {set: {cpuShares: 2, annotations: {by: policy}}}}"


def write(proxy: RuntimeProxy, name: str, spec: str) -> Path:
    """Write a policy atomically, as an editor or a configuration tool does."""
    head = f"apiVersion: runtime-governor.dev/v1alpha1\nkind: NodePolicy\nmetadata: {{name: {name}}}\n"
    proxy.policies.mkdir(exist_ok=True)
    path = proxy.policies / f"{name}.yaml"
    new = path.with_suffix(".new")
    new.write_text(f"{head}spec: {spec}\n", encoding="utf-8")
    return new.replace(path)


async def created(bed: Bed) -> Any:
    """Return the configuration of a container as the runtime received it."""
    await create_container(bed, await run_pod(bed))
    return (await last(bed.runtime, "CreateContainer")).request["config"]


async def test_a_policy_changes_containers_without_any_plugin(bed: Bed) -> None:
    write(bed.proxy, "batch", BATCH)
    await bed.proxy.wait_for_policies(1)

    config = await created(bed)

    assert config["linux"]["resources"] == {"cpu_shares": "2", "oom_score_adj": "5"}
    assert config["annotations"] == {"by": "policy"}
    [line] = await bed.proxy.wait_for_lines("plugins changed a call")
    assert {each["plugin"] for each in line["changes"]} == {"policy/batch"}


async def test_an_update_by_kubelet_does_not_undo_a_policy(bed: Bed) -> None:
    write(bed.proxy, "batch", "{container: {set: {cpuShares: 2}, scale: {cpuQuota: 0.5}}}")
    await bed.proxy.wait_for_policies(1)
    name = await create_container(bed, await run_pod(bed))

    for quota in ("80000", "80000"):
        update = {"container_id": name, "linux": {"cpu_shares": "512", "cpu_quota": quota}}
        await bed.client.answer("UpdateContainerResources", update)

    received = (await last(bed.runtime, "UpdateContainerResources")).request["linux"]
    assert received == {"cpu_shares": "2", "cpu_quota": "40000"}


async def test_plugins_and_policies_take_turns_and_conflicts_are_reported(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin(
        {"method": "PreCreateContainerHook", "answer": {"container_resources": {"cpu_shares": "512"}}}
    )
    await hooked(bed, plugin, order=1)
    write(bed.proxy, "first", "{order: 0, container: {set: {cpuShares: 2}}}")
    write(bed.proxy, "last", "{order: 2, container: {scale: {cpuShares: 0.5}}}")
    await bed.proxy.wait_for_policies(2)

    config = await created(bed)

    assert (await last(plugin, "PreCreateContainerHook")).request["container_resources"]["cpu_shares"] == "2"
    assert config["linux"]["resources"]["cpu_shares"] == "256"
    [line] = await bed.proxy.wait_for_lines("plugins changed a call")
    assert line["conflicts"] == [
        "plugins policy/first and p conflict on container_resources.cpu_shares: policy/first set 2, p set 512",
        "plugins p and policy/last conflict on container_resources.cpu_shares: p set 512, policy/last set 256",
    ]


async def test_a_dry_run_changes_nothing_and_shows_exactly_what_enforcing_changes(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    answer = {"container_envs": {"TOKEN": "secret-value"}, "container_resources": {"cpuset_cpus": "0"}}
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "answer": answer})
    seen = await start_hook_plugin()
    path = await hooked(bed, plugin, name="dry", mode="observe", order=-1, failure_policy="Fail")
    write(bed.proxy, "batch", BATCH.replace("{match", "{mode: observe, match", 1))
    await bed.proxy.wait_for_policies(1)
    await hooked(bed, seen, name="seen", order=1)

    config = await created(bed)

    assert config["linux"]["resources"]["cpu_shares"] == "100"
    assert (await last(seen, "PreCreateContainerHook")).request["container_resources"] == {
        "cpu_shares": "100",
        "oom_score_adj": "5",
    }
    [observed] = await bed.proxy.wait_for_lines("plugins observed a call")
    assert "secret-value" not in bed.proxy.logged()
    found = json.loads((await runtime_proxy(bed.proxy, "explain", "shop/web", "-o", "json")).out)
    [trail] = [each for each in found["trails"] if each.get("observed")]
    assert "changes" not in trail
    text = (await runtime_proxy(bed.proxy, "explain", "shop/web")).out
    assert "Would be changed by plugins in mode observe" in text
    assert await bed.proxy.metric('governor_proxy_observed_fields_total{plugin="policy/batch"}') >= 2

    registration = json.loads(path.read_text())
    path.write_text(json.dumps({**registration, "mode": "enforce"}))
    write(bed.proxy, "batch", BATCH)
    bed.proxy.forget_log()

    async def is_enforced() -> bool:
        await created(bed)
        lines = bed.proxy.lines("plugins changed a call")
        return any(len({each["plugin"] for each in line["changes"]}) == 2 for line in lines)

    await until(is_enforced)
    line = bed.proxy.lines("plugins changed a call")[-1]
    assert line["changes"] == sorted(observed["observed"], key=lambda each: each["field"])


async def test_a_required_plugin_that_observes_rejects_nothing(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"status": {"code": "INTERNAL", "message": "no"}})
    await hooked(bed, plugin, mode="observe", failure_policy="Fail")
    await plugin.kill()

    assert (await created(bed))["metadata"]["name"] == "main"


async def test_the_last_valid_version_stays_in_force_while_a_file_is_replaced(bed: Bed) -> None:
    path = write(bed.proxy, "batch", BATCH)
    await bed.proxy.wait_for_policies(1)
    path.write_text("{", encoding="utf-8")
    await bed.proxy.wait_for_metric("governor_proxy_policy_file_errors", 1)

    assert (await created(bed))["linux"]["resources"]["cpu_shares"] == "2"
    found = json.loads((await runtime_proxy(bed.proxy, "explain", "shop/web", "-o", "json")).out)
    assert any("its last valid version stays in force" in each for each in found["problems"])

    path.unlink()
    await bed.proxy.wait_for_policies(0)
    bed.proxy.policies.rmdir()
    assert (await created(bed))["linux"]["resources"]["cpu_shares"] == "100"


async def test_a_directory_that_is_replaced_while_it_is_read_loses_no_policy(bed: Bed) -> None:
    write(bed.proxy, "batch", BATCH)
    await bed.proxy.wait_for_policies(1)
    for number in range(5):
        other = bed.proxy.policies.with_name(f"other-{number}")
        bed.proxy.policies.rename(other)
        other.rename(bed.proxy.policies)
        write(bed.proxy, f"more-{number}", "{container: {set: {annotations: {more: '1'}}}}")
        await bed.proxy.wait_for_policies(number + 2)

    assert (await created(bed))["annotations"] == {"by": "policy", "more": "1"}


async def test_without_policies_their_engine_is_not_loaded(own_bed: Bed) -> None:
    def mapped() -> str:
        return Path(f"/proc/{own_bed.proxy.pid}/maps").read_text()

    assert (await own_bed.client.call("Version")).code == "OK"
    assert "_yaml" not in mapped()
    write(own_bed.proxy, "batch", BATCH)
    await own_bed.proxy.wait_for_policies(1)
    assert "_yaml" in mapped()


@pytest.mark.parametrize("recipe", ["containerd", "containerd-2"])
async def test_the_values_of_policies_reach_the_cgroups_of_real_containers(real_bed: RealBed) -> None:
    runtime, proxy, client = real_bed.runtime, real_bed.proxy, real_bed.client
    values = "{cpuShares: 2, cpusetCpus: '0', oomScoreAdj: 0, environment: {TIER: batch}}"
    scale = "{cpuQuota: 0.5, memoryLimitInBytes: 2}"
    proxy.policies.mkdir(exist_ok=True)
    (proxy.policies / "mounted").write_text("by a policy\n", encoding="utf-8")
    mount = f"{{hostPath: {proxy.policies}, containerPath: /policies, readOnly: true}}"
    device = "{hostPath: /dev/zero, containerPath: /dev/batch, permissions: r}"
    values = f"{{{values[1:-1]}, mounts: [{mount}], devices: [{device}]}}"
    write(proxy, "batch", f"{{match: {{matchLabels: {{tier: batch}}}}, container: {{set: {values}, scale: {scale}}}}}")
    write(proxy, "unlimited", "{match: {matchLabels: {tier: free}}, container: {clear: [cpuQuota, cpuShares]}}")
    await proxy.wait_for_policies(2)
    resources = {"cpu_period": 100_000, "cpu_quota": 40_000, "cpu_shares": 512, "memory_limit_in_bytes": 1 << 26}
    given = container("main", linux={"resources": {**resources, "oom_score_adj": 900}})

    async def settings(**labels: str) -> dict[str, str]:
        pod = await Pod.run(client, sandbox("web", runtime.cgroup, labels=labels))
        name = await pod.create(given)
        await pod.start(name)
        files = ("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes", "cpuset.cpus")
        found = {file: runtime.setting(name, file) for file in files}
        if labels.get("tier") == "batch":
            script = "cat /policies/mounted; echo $TIER; head -c 1 /dev/batch | od -An -tx1"
            found["inside"] = await Crictl(proxy.socket)("exec", name, "sh", "-c", script)
        await pod.stop(name)
        await pod.end()
        return found

    batch, free, other = await settings(tier="batch"), await settings(tier="free"), await settings()

    assert (batch["cpu.shares"], batch["cpu.cfs_quota_us"], batch["cpuset.cpus"]) == ("2", "20000", "0")
    assert batch["memory.limit_in_bytes"] == str(1 << 27)
    assert batch["inside"].split("\n")[:2] == ["by a policy", "batch"]
    assert batch["inside"].split()[-1] == "00"
    assert free["cpu.cfs_quota_us"] == "-1"
    assert (other["cpu.shares"], other["cpu.cfs_quota_us"]) == ("512", "40000")
    assert other["memory.limit_in_bytes"] == str(1 << 26)
