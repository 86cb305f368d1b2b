"""Mount and process namespaces that outlive the servers in them; everything in them ends with them."""

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
"""Shims, runc and CNI plugins keep sockets and state in these directories; the writes end with the namespaces."""
_READY = "/run/ready"


class Namespaces(Server):
    """A process that holds the namespaces and reaps orphans."""

    def __init__(self, directory: Path, *preparations: str) -> None:
        super().__init__("namespaces", directory, [])
        self._preparations = preparations

    def command(self) -> list[str]:
        """Return a shell command; `exit` keeps the shell from replacing itself with the last command."""
        steps = (*_PRIVATE, *self._preparations, f"touch {_READY}", "sleep infinity")
        return [*_NAMESPACES, "sh", "-c", f"{' && '.join(steps)}; exit $?"]

    async def is_ready(self) -> bool:
        """Return whether the namespaces are prepared."""
        first = child_of(self.pid)
        return first is not None and _is_prepared(first)

    @property
    def is_running(self) -> bool:
        """Whether the namespaces exist."""
        return self._process is not None and self._process.returncode is None

    def enter(self) -> list[str]:
        """Return the prefix of a command line that runs it in the namespaces."""
        return ["nsenter", f"--target={self._first()}", "--mount", "--pid"]

    async def stop(self) -> None:
        """Kill everything: nothing in the namespaces needs a graceful stop."""
        await self.kill()

    async def kill(self) -> None:
        """Kill process 1 of the namespace. The kernel reaps it after all others; then its parent exits too."""
        process = self._process
        if process is not None and process.returncode is None and (first := child_of(process.pid)) is not None:
            os.kill(first, signal.SIGKILL)
            await process.wait()
        await super().kill()

    def _first(self) -> int:
        first = child_of(self.pid)
        if first is None:
            raise TestbedError("the namespaces do not exist yet")
        return first


def _is_prepared(first: int) -> bool:
    return Path(f"/proc/{first}/root{_READY}").exists()


def child_of(pid: int) -> int | None:
    """Return the only child of a process, if it has one."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:  # the process has exited
        return None
    return int(children[0]) if children else None
