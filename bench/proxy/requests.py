"""CRI requests of the size that kubelet sends, and the plugins' hook responses."""

import uuid
from typing import Final

from governor.wire.hooks.hooks_pb2 import ContainerResourceHookResponse, LinuxContainerResources
from testbed.cri.control import Json
from testbed.cri.pods import container, sandbox

LISTED_CONTAINERS: Final = 100
ANNOTATION: Final = "bench.governor/plugin-{}"
"""Annotation that shows that a plugin was called; contains the plugin's number."""


def pod(name: str, cgroup: str) -> Json:
    """Return a pod configuration as kubelet sends it, with a unique name."""
    unique = f"{name}-{uuid.uuid4().hex[:8]}"
    annotations = {"kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z", "kubernetes.io/config.source": "api"}
    labels = {"app": name, "pod-template-hash": "5d4f9c7b8d", "io.kubernetes.pod.name": unique}
    return sandbox(unique, cgroup, labels=labels, annotations=annotations)


def workload(name: str) -> Json:
    """Return a container configuration as kubelet sends it, 1.5 kB encoded. On a real runtime it sleeps."""
    return container(
        name,
        envs=[
            {"key": f"SERVICE_{number}_PORT", "value": f"tcp://10.96.0.{number}:80".encode()} for number in range(20)
        ],
        annotations={
            "io.kubernetes.container.hash": "7d2e9d3c",
            "io.kubernetes.container.restartCount": "0",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "30",
        },
        linux={"resources": {"cpu_period": 100_000, "cpu_quota": 50_000, "cpu_shares": 512, "oom_score_adj": 900}},
    )


def hook_response(number: int) -> bytes:
    """Return a response that changes the CPU shares and adds an annotation."""
    return ContainerResourceHookResponse(
        container_annotations={ANNOTATION.format(number): "called"},
        container_resources=LinuxContainerResources(cpu_shares=256),
    ).SerializeToString()
