"""A server that runs containers, in private namespaces with which its containers and mounts end."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Self

from testbed.linux.cgroups import below_hierarchies, new_name, remove, sweep
from testbed.linux.namespaces import Namespaces, child_of
from testbed.server import Server, is_stopped
from testbed.waiting import until
from toolchain.errors import TestbedError

_CGROUP = "governor-containers"
_EXITED_WITHIN_S = 120.0


class PrivateServer(Server):
    """Extends a server, whose command line it expects to be run with ``enter``.

    After ``kill`` or ``terminate`` it can be started again in the same namespaces; ``stop`` ends everything in them.
    """

    cgroup: str
    """The cgroup for the containers."""
    _namespaces: Namespaces

    def make_private(self, *preparations: str) -> None:
        """Choose the cgroup, and the shell commands that prepare the namespaces."""
        self.cgroup = new_name(_CGROUP)
        self._namespaces = Namespaces(self.directory / "namespaces", *preparations)

    def enter(self) -> list[str]:
        """Return the prefix of a command line that runs it in the namespaces."""
        return self._namespaces.enter()

    @property
    def pid(self) -> int:
        """The server's process id, not that of nsenter, its parent outside of the namespaces."""
        found = child_of(super().pid)
        if found is None:
            raise TestbedError(f"{self.name} is not running")
        return found

    async def start(self) -> Self:
        """Remove cgroups of killed instances, then start."""
        if not self._namespaces.is_running:
            sweep(_CGROUP)
            await self._namespaces.start()
        return await super().start()

    async def stop(self) -> None:
        """Kill the server and everything in the namespaces, and return once the cgroups are removed."""
        await self.kill()
        await self._namespaces.stop()
        await until(self._is_cleared)

    async def kill(self) -> None:
        """Kill the server only."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        """Terminate the server only, as a service manager does."""
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError, TestbedError):  # the server was about to exit
            os.kill(self.pid, how)
        with suppress(ProcessLookupError):  # the server was not paused and has exited
            self.resume()
        async with asyncio.timeout(_EXITED_WITHIN_S):
            await process.wait()
        self._process = None

    async def pause(self) -> None:
        """Suspend the server, and return once its parent has noticed, which then continues both."""
        parent = super().pid
        await super().pause()

        async def has_noticed() -> bool:
            return is_stopped(parent)

        await until(has_noticed)

    def resume(self) -> None:
        """Continue the parent, which was paused with the server and then continues it."""
        os.kill(super().pid, signal.SIGCONT)

    async def _is_cleared(self) -> bool:
        """Return whether the cgroups are removed, which is possible once their last process has exited."""
        remove(self.cgroups())
        return not self.cgroups()

    def cgroups(self) -> list[Path]:
        """Return the cgroups that exist."""
        return below_hierarchies(self.cgroup)
