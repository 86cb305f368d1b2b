"""Containers without a cluster: a containerd in namespaces of its own, with which they and their mounts end.

It runs them as a careful cluster would: as the image's user, on a root file system that cannot be written.
"""

import asyncio
import os
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

from testbed.containerd import NAMESPACE, Containerd
from testbed.errors import TestbedError
from testbed.oci import NONROOT, Archive
from testbed.recipes import provide
from testbed.waiting import until

HIERARCHIES = Path("/sys/fs/cgroup")
_CGROUP = "governor-containers"
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
# Shims and runc keep sockets and states in /run; the shell stays, for somebody must take the orphans.
_FIRST_PROCESS = ("sh", "-c", 'mount -t tmpfs tmpfs /run && "$@"; exit $?', "sh")
_ANSWER_WITHIN_S = 120.0


class PrivateContainerd(Containerd):
    """A containerd that nobody else sees; it leaves nothing behind, however it ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(provide(["containerd"])["containerd"], directory, directory / "cni")
        self.cgroup = f"{_CGROUP}-{os.getpid()}-{secrets.token_hex(4)}"

    def command(self) -> list[str]:
        """containerd, but for the namespaces the same as any."""
        return [*_NAMESPACES, *_FIRST_PROCESS, *super().command()]

    async def start(self) -> Self:
        """Start, after removing what those left behind who were killed."""
        _sweep()
        return await super().start()

    async def stop(self) -> None:
        """Nothing in it is worth a goodbye."""
        await self.kill()
        await until(self._is_cleared)

    async def _is_cleared(self) -> bool:
        """Whether its cgroups are gone; the kernel lets them go when the last process has."""
        _remove(self.cgroup)
        return not self.cgroups()

    def cgroups(self) -> list[Path]:
        """Those that are still there."""
        return _below_hierarchies(self.cgroup)

    async def ctr(self, *arguments: str) -> str:
        """What containerd's own client prints inside of the namespaces."""
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
        enter = ["nsenter", f"--target={self._first_process()}", "--mount", "--pid"]
        ctr = [str(self._binary.parent / "ctr"), f"--address={self.socket}", f"--namespace={NAMESPACE}"]
        environment = self.environment()
        return await asyncio.create_subprocess_exec(*enter, *ctr, *arguments, stdout=PIPE, stderr=PIPE, env=environment)

    def _first_process(self) -> str:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="utf-8").split()
        if not children:
            raise TestbedError("the namespaces are not there yet")
        return children[0]


def volume(directory: Path) -> Path:
    """A directory that a container may write into when it is mounted there."""
    directory.mkdir()
    os.chown(directory, NONROOT, NONROOT)
    return directory


def _below_hierarchies(pattern: str) -> list[Path]:
    """Cgroups of that name: in each hierarchy, or in the only one."""
    return [*HIERARCHIES.glob(pattern), *HIERARCHIES.glob(f"*/{pattern}")]


def _sweep() -> None:
    """Remove the cgroups of starters that have ended."""
    for name in {path.name for path in _below_hierarchies(f"{_CGROUP}-*")}:
        if not Path("/proc", name.split("-")[-2]).exists():
            _remove(name)


def _remove(name: str) -> None:
    """Remove cgroups of that name and below, as far as no process is in them."""
    for cgroup in _below_hierarchies(name):
        for directory in (*sorted(cgroup.rglob("*/"), reverse=True), cgroup):
            with suppress(OSError):
                directory.rmdir()
