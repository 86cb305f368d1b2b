"""A pod, a container and their calls, for tests of plugins."""

from pathlib import Path
from typing import Any

from testbed.cri.control import Json
from testbed.cri.peers import AnsweringPeer, HookPlugin, Received
from tests.integration.runtimeproxy.bed import Bed

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
    """Register a plugin, by default for all hooks, and wait until the proxy uses it."""
    before = len(list(bed.proxy.plugins.glob("*.json"))) if bed.proxy.plugins.exists() else 0
    path = plugin.register(bed.proxy.plugins, name, more.pop("hooks", ALL), **more)
    await bed.proxy.wait_for_plugins(before + 1)
    return path


async def run_pod(bed: Bed, **changes: Any) -> str:
    """Run a pod and return its id."""
    answer = await bed.client.answer("RunPodSandbox", {"config": {**POD, **changes}})
    return str(answer["pod_sandbox_id"])


async def create_container(bed: Bed, pod: str, **changes: Any) -> str:
    """Create a container and return its id."""
    request = {"pod_sandbox_id": pod, "config": {**CONTAINER, **changes}, "sandbox_config": POD}
    return str((await bed.client.answer("CreateContainer", request))["container_id"])


async def last(peer: AnsweringPeer, method: str) -> Received:
    """Return the latest call of a method that a peer received."""
    return (await peer.received(method))[-1]
