"""A private dockerd: Debian's, with Debian's containerd, in namespaces of its own.

It has a network namespace without a way out, and no bridge: containers have the network "none".
"""

from pathlib import Path
from typing import Self

from testbed import images
from testbed.docker.cli import DockerCli
from testbed.docker.engine import Engine, is_serving
from testbed.linux.cgroups import below_hierarchies
from testbed.linux.private_server import PrivateServer
from testbed.recipes import provide
from testbed.server import short_socket
from toolchain.errors import TestbedError

_UNUSED = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--userland-proxy=false")
_IN_NETWORK = "nsenter --net=/run/netns/docker"


class Dockerd(PrivateServer):
    """A dockerd with the image ``busybox``; all containers' cgroups are below ``cgroup``."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__("dockerd", directory, [])
        self.make_private("ip netns add docker")
        self.socket = short_socket(directory / "docker.sock")
        self.cli = DockerCli(self.socket)
        self.engine = Engine(self.socket)
        self.image = ""
        self._programs = provide(["dockerd", "containerd"])
        self._arguments = arguments

    def command(self) -> list[str]:
        """Return the command line; sockets, process ids and mounts of containers lie below the private ``/run``."""
        return [
            *(*self.enter(), *_IN_NETWORK.split(), str(self._programs["dockerd"])),
            f"--host=unix://{self.socket}",
            f"--data-root={self.directory / 'data'}",
            f"--cgroup-parent=/{self.cgroup}",
            "--oom-score-adjust=0",  # less than the caller's own requires a capability
            "--shutdown-timeout=1",
            *_UNUSED,
            *self._arguments,
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment: dockerd finds containerd, its shim and runc on the PATH."""
        directories = [str(program.parent) for program in self._programs.values()]
        path = ":".join([*directories, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
        return {**super().environment(), "PATH": path}

    async def start(self) -> Self:
        """Start, and load the image the first time."""
        await super().start()
        if not self.image:
            archive = images.busybox()
            await self.cli("load", f"--input={archive.file}")
            self.image = archive.name
        return self

    async def is_ready(self) -> bool:
        """Return whether it serves the Engine API."""
        return await is_serving(self.socket)

    def setting(self, container_id: str, file: str) -> str:
        """Return the content of a file in a running container's cgroup, such as ``cpu.shares``."""
        for found in below_hierarchies(f"{self.cgroup}/{container_id}*/{file}"):
            return found.read_text(encoding="utf-8").strip()
        raise TestbedError(f"no cgroup of container {container_id} has a file {file}")
