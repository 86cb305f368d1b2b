"""A containerd in namespaces of its own, to run what was assembled: with it end its containers and their mounts."""

import asyncio
import os
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from testbed.containerd import NAMESPACE, Containerd
from testbed.errors import TestbedError
from testbed.oci import NONROOT, Archive
from testbed.recipes import provide
from testbed.waiting import until

HIERARCHIES = Path("/sys/fs/cgroup")
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
# Shims and runc keep sockets and states in /run; the shell stays, for somebody must take the orphans.
_FIRST_PROCESS = ("sh", "-c", 'mount -t tmpfs tmpfs /run && "$@"; exit $?', "sh")
_ANSWER_WITHIN_S = 120.0


class PrivateContainerd(Containerd):
    """Runs containers as a careful cluster would: without root, on a root file system that cannot be written."""

    def __init__(self, directory: Path) -> None:
        super().__init__(provide(["containerd"])["containerd"], directory, directory / "cni")
        self.cgroup = f"governor-image-{secrets.token_hex(4)}"

    def command(self) -> list[str]:
        return [*_NAMESPACES, *_FIRST_PROCESS, *super().command()]

    async def stop(self) -> None:
        """Nothing in it is worth a goodbye."""
        await self.kill()
        await until(self._is_cleared)

    async def _is_cleared(self) -> bool:
        """Whether its cgroups are gone; the kernel lets them go when the last process has."""
        for directory in self.cgroups():
            for path in sorted(directory.rglob("*/"), reverse=True):
                _remove(path)
            _remove(directory)
        return not list(self.cgroups())

    def cgroups(self) -> Iterator[Path]:
        yield from (
            path for path in (HIERARCHIES / self.cgroup, *HIERARCHIES.glob(f"*/{self.cgroup}")) if path.exists()
        )

    async def ctr(self, *arguments: str) -> str:
        process = await self._start_ctr(*arguments)
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            printed, complaints = await process.communicate()
        if process.returncode != 0:
            raise TestbedError(f"ctr {' '.join(arguments)} failed: {complaints.decode()}{printed.decode()}")
        return printed.decode()

    async def take(self, archive: Archive) -> str:
        """The name under which the image is known from now on."""
        await self.ctr("images", "import", str(archive.file))
        return archive.name

    async def run(self, image: str, *arguments: str, mounts: Mapping[Path, str] | None = None) -> str:
        """What a container prints; without arguments it does what the image says."""
        return await self.ctr(*self._run(image, f"c-{secrets.token_hex(4)}", arguments, mounts or {}))

    @asynccontextmanager
    async def running(
        self, image: str, *arguments: str, mounts: Mapping[Path, str] | None = None
    ) -> AsyncIterator[Process]:
        """A container in the machine's network; afterwards it has ended because it was asked to."""
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
        first = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        if not first:
            raise TestbedError("the namespaces are not there yet")
        enter = ["nsenter", f"--target={first[0]}", "--mount", "--pid"]
        ctr = [str(self._binary.parent / "ctr"), f"--address={self.socket}", f"--namespace={NAMESPACE}"]
        environment = self.environment()
        return await asyncio.create_subprocess_exec(*enter, *ctr, *arguments, stdout=PIPE, stderr=PIPE, env=environment)


def volume(directory: Path) -> Path:
    """A directory that a container may write into when it is mounted there."""
    directory.mkdir()
    os.chown(directory, NONROOT, NONROOT)
    return directory


def _remove(cgroup: Path) -> None:
    try:
        cgroup.rmdir()
    except OSError:
        return
