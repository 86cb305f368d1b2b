"""A runtime proxy between clients and a dockerd, and the containers that cri-dockerd would create."""

from typing import Any

from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.docker.cli import DockerCli
from testbed.docker.dockerd import Dockerd
from testbed.docker.engine import Engine

DOCKER_MODE = "--backend-runtime-mode=Docker"
IDENTITY = {
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "uid-1",
}
RUNNING = {"Cmd": ["-c", "exec sleep 1000"]}


class DockerBed:
    """A dockerd, a proxy, and clients of both."""

    def __init__(self, dockerd: Dockerd, proxy: RuntimeProxy) -> None:
        self.dockerd = dockerd
        self.proxy = proxy
        self.direct = dockerd.engine
        self.engine = Engine(proxy.socket)
        self.cli = DockerCli(proxy.socket)

    async def remove_containers(self) -> None:
        """Remove all containers."""
        for each in await self.direct("GET", "/containers/json", query={"all": "1"}):
            await self.direct("DELETE", f"/containers/{each['Id']}", query={"force": "1"})

    async def inspect(self, container: str) -> Any:
        """Return what dockerd has of a container."""
        return await self.direct("GET", f"/containers/{container}/json")

    async def create_sandbox(self, *, name: str = "k8s_POD_web_shop_uid-1_0", **more: Any) -> str:
        """Create a sandbox as cri-dockerd does."""
        labels = {**IDENTITY, "app": "web", "annotation.checksum": "1", "io.kubernetes.docker.type": "podsandbox"}
        return await self._create(name, labels, more)

    async def create_container(
        self, sandbox: str, *, name: str = "k8s_app_web_shop_uid-1_0", labels: dict[str, str] | None = None, **more: Any
    ) -> str:
        """Create a container as cri-dockerd does."""
        own = {
            **IDENTITY,
            "io.kubernetes.container.name": "app",
            "annotation.io.kubernetes.container.restartCount": "0",
            "io.kubernetes.docker.type": "container",
            "io.kubernetes.sandbox.id": sandbox,
        }
        return await self._create(name, {**own, **(labels or {})}, more)

    async def _create(self, name: str, labels: dict[str, str], more: dict[str, Any]) -> str:
        host = {"NetworkMode": "none", "CgroupParent": f"/{self.dockerd.cgroup}", **more.pop("HostConfig", {})}
        body = {"Image": self.dockerd.image, **RUNNING, "Labels": labels, "HostConfig": host, **more}
        created = await self.engine("POST", "/containers/create", body, {"name": name})
        return str(created["Id"])
