"""Containers without a cluster: a containerd in private namespaces, with which containers and mounts end.

Containers run as the image's user, with a read-only root file system.
"""

import asyncio
import os
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from testbed.cri.containerd import NAMESPACE, PLUGINS, Containerd
from testbed.linux.private_server import PrivateServer
from testbed.recipes import provide
from toolchain.errors import TestbedError
from toolchain.oci import NONROOT, Archive

_ANSWER_WITHIN_S = 120.0


class PrivateContainerd(PrivateServer, Containerd):
    """A containerd in private namespaces that leaves nothing behind, however it ends.

    After ``kill`` or ``terminate`` it can be started again while its containers run on; ``stop`` ends them too.
    """

    def __init__(
        self, directory: Path, recipe: str = "containerd", plugins: Path = PLUGINS, *preparations: str
    ) -> None:
        super().__init__(provide([recipe])[recipe], directory, directory / "cni", plugins)
        self.make_private(*preparations)

    def command(self) -> list[str]:
        """Return containerd's command line, run in the namespaces."""
        return [*self.enter(), *super().command()]

    async def ctr(self, *arguments: str) -> str:
        """Run containerd's client in the namespaces and return its output."""
        process = await self._start_ctr(*arguments)
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            stdout, stderr = await process.communicate()
        if process.returncode != 0:
            raise TestbedError(f"ctr {' '.join(arguments)} failed: {stderr.decode()}{stdout.decode()}")
        return stdout.decode()

    async def import_image(self, archive: Archive) -> str:
        """Import an image and return its name."""
        await self.ctr("images", "import", str(archive.file))
        return archive.name

    async def run(self, image: str, *arguments: str, mounts: Mapping[Path, str] | None = None) -> str:
        """Run a container to its end and return its output; without arguments it runs the image's command."""
        return await self.ctr(*self._run(image, f"c-{secrets.token_hex(4)}", arguments, mounts or {}))

    @asynccontextmanager
    async def running(
        self, image: str, *arguments: str, mounts: Mapping[Path, str] | None = None
    ) -> AsyncIterator[Process]:
        """Run a container in the host's network; it is terminated at the end."""
        name = f"c-{secrets.token_hex(4)}"
        process = await self._start_ctr(*self._run(image, name, arguments, mounts or {}, "--net-host"))
        try:
            yield process
        finally:
            if process.returncode is None:
                await self.ctr("tasks", "kill", "--signal", "SIGTERM", name)
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                await process.communicate()

    def _run(
        self, image: str, name: str, arguments: tuple[str, ...], mounts: Mapping[Path, str], *options: str
    ) -> list[str]:
        bound = [f"--mount=type=bind,src={source},dst={target},options=rbind:rw" for source, target in mounts.items()]
        settings = ["--rm", "--read-only", f"--cgroup=/{self.cgroup}/{name}", *bound, *options]
        return ["run", *settings, image, name, *arguments]

    async def _start_ctr(self, *arguments: str) -> Process:
        enter = self.enter()
        ctr = [str(self._binary.parent / "ctr"), f"--address={self.socket}", f"--namespace={NAMESPACE}"]
        environment = self.environment()
        return await asyncio.create_subprocess_exec(*enter, *ctr, *arguments, stdout=PIPE, stderr=PIPE, env=environment)


def volume(directory: Path) -> Path:
    """Create a directory that a container may write to when it is mounted."""
    directory.mkdir()
    os.chown(directory, NONROOT, NONROOT)
    return directory
