"""Mount and process namespaces, in which servers may end and start again; all that is in them ends with them."""

import os
import signal
from pathlib import Path

from testbed.server import Server
from toolchain.errors import TestbedError

_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_PRIVATE = (
    "mount -t tmpfs tmpfs /run",
    "mkdir /run/written /run/work",
    "mount -t overlay -o lowerdir=/var/lib,upperdir=/run/written,workdir=/run/work overlay /var/lib",
)
"""Shims, runc and network plug-ins keep sockets and states there: nothing that they write outlives the namespaces."""
_READY = "/run/ready"


class Namespaces(Server):
    """A process that does nothing but hold them, and take the orphans of the others."""

    def __init__(self, directory: Path, *preparations: str) -> None:
        super().__init__("namespaces", directory, [])
        self._preparations = preparations

    def command(self) -> list[str]:
        """A shell that stays: a last command alone it would replace itself with."""
        steps = (*_PRIVATE, *self._preparations, f"touch {_READY}", "sleep infinity")
        return [*_NAMESPACES, "sh", "-c", f"{' && '.join(steps)}; exit $?"]

    async def is_ready(self) -> bool:
        """Whether they are as they shall be."""
        first = child_of(self.pid)
        return first is not None and _is_prepared(first)

    @property
    def is_running(self) -> bool:
        """Whether they are there."""
        return self._process is not None and self._process.returncode is None

    def enter(self) -> list[str]:
        """What comes before a command line that shall run in them."""
        return ["nsenter", f"--target={self._first()}", "--mount", "--pid"]

    async def stop(self) -> None:
        """Nothing in them is worth a goodbye."""
        await self.kill()

    async def kill(self) -> None:
        """Kill the first process: it has ended when all others have, and then its parent ends too."""
        process = self._process
        if process is not None and process.returncode is None and (first := child_of(process.pid)) is not None:
            os.kill(first, signal.SIGKILL)
            await process.wait()
        await super().kill()

    def _first(self) -> int:
        first = child_of(self.pid)
        if first is None:
            raise TestbedError("the namespaces are not there yet")
        return first


def _is_prepared(first: int) -> bool:
    return Path(f"/proc/{first}/root{_READY}").exists()


def child_of(pid: int) -> int | None:
    """The only child of a process, if it has one."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:  # it has ended
        return None
    return int(children[0]) if children else None
