"""Real containerds without kubelet run concurrently and leave nothing behind."""

from pathlib import Path

from testbed.cluster.network import HOST_LINK
from testbed.cri.containerd import NAMESPACE
from testbed.cri.fixtures import StartCriClient, StartCriRuntime
from testbed.cri.pods import Pod, sandbox
from testbed.linux.cgroups import below_hierarchies


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
