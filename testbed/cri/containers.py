"""Containers without a cluster: a containerd in namespaces of its own, with which they and their mounts end.

It runs them as a careful cluster would: as the image's user, on a root file system that cannot be written.
"""

import asyncio
import os
import secrets
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

from testbed.cri.containerd import NAMESPACE, PLUGINS, Containerd
from testbed.linux.cgroups import below_hierarchies, new_name, remove, sweep
from testbed.linux.namespaces import Namespaces, child_of
from testbed.recipes import provide
from testbed.waiting import until
from toolchain.errors import TestbedError
from toolchain.oci import NONROOT, Archive

_CGROUP = "governor-containers"
_ANSWER_WITHIN_S = 120.0


class PrivateContainerd(Containerd):
    """A containerd that nobody else sees; it leaves nothing behind, however it ends.

    It may be killed or halted and started again, while its containers go on; ``stop`` ends them, too.
    """

    def __init__(
        self, directory: Path, recipe: str = "containerd", plugins: Path = PLUGINS, *preparations: str
    ) -> None:
        super().__init__(provide([recipe])[recipe], directory, directory / "cni", plugins)
        self.cgroup = new_name(_CGROUP)
        self._namespaces = Namespaces(directory / "namespaces", *preparations)

    def command(self) -> list[str]:
        """containerd, but for the namespaces the same as any."""
        return [*self._namespaces.enter(), *super().command()]

    @property
    def pid(self) -> int:
        """containerd's own, and not that of its parent, which waits for it outside of the namespaces."""
        found = child_of(super().pid)
        if found is None:
            raise TestbedError(f"{self.name} is not running")
        return found

    async def start(self) -> Self:
        """Start, after removing what those left behind who were killed."""
        if not self._namespaces.is_running:
            sweep(_CGROUP)
            await self._namespaces.start()
        return await super().start()

    async def stop(self) -> None:
        """Nothing in it is worth a goodbye."""
        await self.kill()
        await self._namespaces.stop()
        await until(self._is_cleared)

    async def kill(self) -> None:
        """End containerd as a crash would, and nothing else."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        """End containerd as its service would be ended, and nothing else."""
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError, TestbedError):  # it was about to end
            os.kill(self.pid, how)
        with suppress(ProcessLookupError):  # it was not paused, and has ended
            self.resume()
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            await process.wait()
        self._process = None

    def resume(self) -> None:
        """End a pause: its parent pauses with it, and lets it go on."""
        os.kill(super().pid, signal.SIGCONT)

    async def _is_cleared(self) -> bool:
        """Whether its cgroups are gone; the kernel lets them go when the last process has."""
        remove(self.cgroups())
        return not self.cgroups()

    def cgroups(self) -> list[Path]:
        """Those that are still there."""
        return below_hierarchies(self.cgroup)

    async def ctr(self, *arguments: str) -> str:
        """What containerd's own client prints inside of the namespaces."""
        process = await self._start_ctr(*arguments)
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            printed, complaints = await process.communicate()
        if process.returncode != 0:
            raise TestbedError(f"ctr {' '.join(arguments)} failed: {complaints.decode()}{printed.decode()}")
        return printed.decode()

    async def import_image(self, archive: Archive) -> str:
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
        enter = self._namespaces.enter()
        ctr = [str(self._binary.parent / "ctr"), f"--address={self.socket}", f"--namespace={NAMESPACE}"]
        environment = self.environment()
        return await asyncio.create_subprocess_exec(*enter, *ctr, *arguments, stdout=PIPE, stderr=PIPE, env=environment)


def volume(directory: Path) -> Path:
    """A directory that a container may write into when it is mounted there."""
    directory.mkdir()
    os.chown(directory, NONROOT, NONROOT)
    return directory
