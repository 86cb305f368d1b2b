"""Pods created through CRI as kubelet does: their configurations and life cycle."""

import uuid
from dataclasses import dataclass
from typing import Any, Self

from testbed.cri.client import V1, CriClient
from testbed.cri.control import Json
from toolchain.oci import LOCAL

_BUSYBOX = f"{LOCAL}/busybox:1"


def sandbox(name: str, cgroup: str, **changes: Any) -> Json:
    """Return the configuration of a pod whose cgroup is below the given one."""
    return {
        "metadata": {"name": name, "uid": str(uuid.uuid4()), "namespace": "default"},
        "hostname": name,
        "dns_config": {"servers": ["127.0.0.1"]},
        "labels": {"app": name},
        "linux": {
            "cgroup_parent": f"/{cgroup}/{name}",
            "security_context": {"namespace_options": {"pid": "CONTAINER"}},
        },
        **changes,
    }


def container(name: str, *command: str, **changes: Any) -> Json:
    """Return the configuration of a ``busybox`` container; without a command it sleeps."""
    return {
        "metadata": {"name": name},
        "image": {"image": _BUSYBOX},
        "command": list(command or ("sleep", "infinity")),
        "labels": {"container": name},
        **changes,
    }


@dataclass(frozen=True)
class Pod:
    """A pod started by a client through one of CRI's packages."""

    client: CriClient
    id: str
    config: Json
    package: str = V1

    @classmethod
    async def run(cls, client: CriClient, config: Json, package: str = V1) -> Self:
        """Start a pod without containers."""
        answer = await client.answer("RunPodSandbox", {"config": config}, package=package)
        return cls(client, answer["pod_sandbox_id"], config, package)

    async def create(self, config: Json) -> str:
        """Create a container and return its id."""
        request = {"pod_sandbox_id": self.id, "config": config, "sandbox_config": self.config}
        answer = await self.client.answer("CreateContainer", request, package=self.package)
        return str(answer["container_id"])

    async def start(self, container_id: str) -> None:
        """Start a container."""
        await self._act("StartContainer", container_id=container_id)

    async def stop(self, container_id: str) -> None:
        """Stop a container without a grace period."""
        await self._act("StopContainer", container_id=container_id)

    async def remove(self, container_id: str) -> None:
        """Remove a container."""
        await self._act("RemoveContainer", container_id=container_id)

    async def end(self) -> None:
        """Stop and remove the pod with all its containers."""
        await self._act("StopPodSandbox", pod_sandbox_id=self.id)
        await self._act("RemovePodSandbox", pod_sandbox_id=self.id)

    async def _act(self, method: str, **request: str) -> None:
        await self.client.answer(method, request, package=self.package)
