"""Real containerds without kubelet: pods of both versions of CRI, their cgroups, restarts, and nothing left behind."""

import json
from pathlib import Path

import pytest

from testbed.cluster.network import HOST_LINK
from testbed.cri.client import V1, V1ALPHA2
from testbed.cri.containerd import NAMESPACE
from testbed.cri.fixtures import StartCriClient, StartCriRuntime
from testbed.cri.pods import Pod, container, sandbox
from testbed.linux.cgroups import below_hierarchies
from testbed.waiting import until

RESOURCES = {
    "resources": {"cpu_shares": 300, "cpu_period": 100_000, "cpu_quota": 50_000, "memory_limit_in_bytes": 64 << 20}
}


@pytest.mark.parametrize(("recipe", "package"), [("containerd", V1), ("containerd", V1ALPHA2), ("containerd-2", V1)])
async def test_a_pods_resources_are_in_its_cgroup_files(
    recipe: str, package: str, start_cri_runtime: StartCriRuntime, start_cri_client: StartCriClient
) -> None:
    runtime = await start_cri_runtime(recipe)
    client = await start_cri_client(runtime.socket)
    version = await client.answer("Version", package=package)
    assert f"runtime.{version['runtime_api_version']}" == package
    pod = await Pod.run(client, sandbox("one", runtime.cgroup), package)
    created = await pod.create(container("sleeper", linux=RESOURCES))
    await pod.start(created)

    assert runtime.setting(created, "cpu.shares") == "300"
    assert runtime.setting(created, "cpu.cfs_quota_us") == "50000"
    assert runtime.setting(created, "memory.limit_in_bytes") == str(64 << 20)

    update = {"container_id": created, "linux": {"cpu_shares": 700}}
    await client.answer("UpdateContainerResources", update, package=package)
    assert runtime.setting(created, "cpu.shares") == "700"

    status = await client.answer("ContainerStatus", {"container_id": created, "verbose": True}, package=package)
    config = json.loads(status["info"]["info"])["config"]
    assert config["metadata"]["name"] == "sleeper"

    await pod.stop(created)
    await pod.remove(created)
    await pod.end()
    assert await client.answer("ListContainers", package=package) == {}
    assert await client.answer("ListPodSandbox", package=package) == {}
    assert (await client.wire()).errors == ()


async def test_containerd_2_sends_events(start_cri_runtime: StartCriRuntime, start_cri_client: StartCriClient) -> None:
    runtime = await start_cri_runtime("containerd-2")
    client = await start_cri_client(runtime.socket)
    async with client.stream("GetContainerEvents") as events:
        pod = await Pod.run(client, sandbox("one", runtime.cgroup))
        created = await pod.create(container("sleeper"))
        await pod.start(created)
        await events.until(lambda seen: {"CREATED", "STARTED"} <= _event_kinds(created, seen.answers))
        await pod.end()
        await events.until(lambda seen: {"STOPPED", "DELETED"} <= _event_kinds(created, seen.answers))
        last = await events.end()
    assert last.code == "CANCELLED"


def _event_kinds(container_id: str, answers: tuple[dict[str, str], ...]) -> set[str]:
    kinds = [each.get("container_event_type", "") for each in answers if each["container_id"] == container_id]
    # JSON omits the first value of an enumeration.
    return {kind.removeprefix("CONTAINER_").removesuffix("_EVENT") or "CREATED" for kind in kinds}


async def test_events_are_unimplemented_in_containerd_1(
    start_cri_runtime: StartCriRuntime, start_cri_client: StartCriClient
) -> None:
    client = await start_cri_client((await start_cri_runtime("containerd")).socket)
    async with client.stream("GetContainerEvents") as events:
        assert (await events.until(lambda seen: seen.code != "")).code == "UNIMPLEMENTED"


@pytest.mark.parametrize("recipe", ["containerd", "containerd-2"])
async def test_containers_survive_a_killed_paused_and_terminated_containerd(
    recipe: str, start_cri_runtime: StartCriRuntime, start_cri_client: StartCriClient
) -> None:
    runtime = await start_cri_runtime(recipe)
    client = await start_cri_client(runtime.socket)
    pod = await Pod.run(client, sandbox("one", runtime.cgroup))
    created = await pod.create(container("sleeper"))
    await pod.start(created)
    process = runtime.setting(created, "cgroup.procs")

    await runtime.kill()
    assert (await client.call("Version")).code == "UNAVAILABLE"
    await runtime.start()
    await runtime.pause()
    assert (await client.call("Version", wait_for_ready=True, deadline_s=0.2)).code == "DEADLINE_EXCEEDED"
    runtime.resume()
    await runtime.terminate()
    await runtime.start()

    listed = await client.answer("ListContainers", wait_for_ready=True)
    assert [each["state"] for each in listed["containers"]] == ["CONTAINER_RUNNING"]
    assert runtime.setting(created, "cgroup.procs") == process
    await pod.end()


@pytest.mark.parametrize("recipe", ["containerd", "containerd-2"])
async def test_crictl_executes_shows_logs_and_forwards_ports(
    recipe: str, start_cri_runtime: StartCriRuntime, start_cri_client: StartCriClient, tmp_path: Path
) -> None:
    runtime = await start_cri_runtime(recipe)
    client = await start_cri_client(runtime.socket)
    pod = await Pod.run(client, sandbox("one", runtime.cgroup, log_directory=str(tmp_path)))
    serve = "echo started; exec nc -ll -p 8080 -e echo answered"
    created = await pod.create(container("server", "sh", "-c", serve, log_path="server.log"))
    await pod.start(created)

    assert await runtime.crictl("exec", created, "echo", "executed") == "executed\n"
    assert (await runtime.crictl("exec", "--sync", created, "echo", "executed")).strip() == "executed"
    assert await until(lambda: runtime.crictl("logs", created)) == "started\n"
    assert await runtime.crictl.read_from_port(pod.id, 8080) == b"answered\n"


async def test_two_concurrent_runtimes_leave_nothing_behind(
    start_cri_runtime: StartCriRuntime, start_cri_client: StartCriClient
) -> None:
    runtimes = [await start_cri_runtime(recipe) for recipe in ("containerd", "containerd-2")]
    clients = [await start_cri_client(runtime.socket) for runtime in runtimes]
    links = _network_devices()
    pods = [
        await Pod.run(client, sandbox("one", runtime.cgroup)) for runtime, client in zip(runtimes, clients, strict=True)
    ]
    statuses = [await pod.client.answer("PodSandboxStatus", {"pod_sandbox_id": pod.id}) for pod in pods]
    assert [each["status"]["network"]["ip"] for each in statuses] == ["10.77.0.16"] * 2
    without_cgroup = {name: value for name, value in sandbox("two", "").items() if name != "linux"}
    lost = await Pod.run(clients[0], without_cgroup)
    assert below_hierarchies(f"{NAMESPACE}/{lost.id}") != []

    for runtime in runtimes:
        await runtime.stop()
    assert [runtime.cgroups() for runtime in runtimes] == [[], []]
    assert below_hierarchies(f"{NAMESPACE}/{lost.id}") == []
    assert _network_devices() == links
    mounts = Path("/proc/self/mountinfo").read_text()
    assert [runtime for runtime in runtimes if str(runtime.directory) in mounts] == []


def _network_devices() -> set[str]:
    """Return the host's network devices, without the cluster's veth, which other tests may create or delete."""
    return {device.name for device in Path("/sys/class/net").iterdir()} - {HOST_LINK}
