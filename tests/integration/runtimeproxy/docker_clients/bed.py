"""A dockerd that is reached directly or through a runtime proxy.

Each assertion about a client runs on both routes, so that it is known to hold for dockerd itself.
"""

from pathlib import Path

from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.docker.cli import DockerCli
from testbed.docker.dockerd import Dockerd
from testbed.docker.engine import Engine

DOCKER_MODE = "--backend-runtime-mode=Docker"
IDLE = "trap 'exit 0' TERM; sleep 100000 & wait"
"""The command of a container that only runs. Process 1 ignores signals that it does not handle."""


class DockerBed:
    """A dockerd and the socket that clients use."""

    def __init__(self, dockerd: Dockerd, socket: Path) -> None:
        self.dockerd = dockerd
        self.socket = socket
        self.cli = DockerCli(socket)
        self.engine = Engine(socket)

    @property
    def image(self) -> str:
        """The image of all containers; its entrypoint is a shell."""
        return self.dockerd.image

    @property
    def logs(self) -> list[Path]:
        """The log files of the servers."""
        return [self.dockerd.log]

    async def run(self, *options: str, script: str = IDLE) -> str:
        """Run a container in the background, and return its id."""
        return await self.cli("run", "--detach", *options, self.image, "-c", script)

    async def clear(self) -> None:
        """Remove all containers."""
        for each in await self.dockerd.engine("GET", "/containers/json", query={"all": "true"}):
            await self.dockerd.engine("DELETE", f"/containers/{each['Id']}", query={"force": "true"})


class ProxiedBed(DockerBed):
    """A bed whose clients use a runtime proxy."""

    def __init__(self, dockerd: Dockerd, proxy: RuntimeProxy) -> None:
        super().__init__(dockerd, proxy.socket)
        self.proxy = proxy

    @property
    def logs(self) -> list[Path]:
        """The log files of the servers."""
        return [*super().logs, self.proxy.log]
