"""One real server process on loopback: free ports, start, readiness, log, stop.

A server ends with the process that started it, even if that is killed. Subclasses define the command line and the
readiness check.
"""

import asyncio
import functools
import itertools
import os
import random
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self

from testbed.waiting import until
from toolchain.errors import TestbedError, tail

STOP_WITHIN_S = 30.0
_ATTEMPTS = 5
_LONGEST_SOCKET = 104
_PORTS = range(2_000, 10_000)
_WORKERS = 16
"""Each pytest worker has its own ports, so none takes those of another's server during its restart."""


def free_ports(count: int) -> list[int]:
    """Return free loopback ports, outside of the ranges of outgoing connections and of agents' sidecars."""
    free = filter(_is_free, itertools.islice(_own_ports(), len(_PORTS) // _WORKERS))
    ports = list(itertools.islice(free, count))
    if len(ports) < count:
        raise TestbedError(f"too few of the test bed's ports {_PORTS.start}-{_PORTS.stop - 1} are free")
    return ports


@functools.cache
def _own_ports() -> Iterator[int]:
    """Cycle through this worker's ports: a server may bind its port only after others were allocated."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = _PORTS[worker % _WORKERS :: _WORKERS]
    return itertools.cycle(random.sample(own, len(own)))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_stopped(pid: int) -> bool:
    """Return whether all threads are stopped; on a busy machine the kernel stops them one by one."""
    return all(_state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir())


def _state(thread: Path) -> str:
    # The state follows the name, which is in parentheses and may contain any character.
    return (thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def short_socket(socket: Path, suffix: str = "") -> Path:
    """Return a Unix socket's path; raise if it is too long with the suffix that its server appends."""
    if len(f"{socket}{suffix}") > _LONGEST_SOCKET:
        raise TestbedError(f"the path is too long for a Unix socket: {socket}; use a shorter directory")
    return socket


class Server(ABC):
    """A server process, started with ``async with`` or ``start``; it can be stopped and started again."""

    ready_within_s: ClassVar[float] = 120.0
    death_signal: ClassVar[str] = "KILL"
    """The signal that it receives when its parent process exits."""

    def __init__(self, name: str, directory: Path, port_names: Sequence[str]) -> None:
        self.name = name
        self.directory = directory
        self.log = directory / f"{name}.log"
        self.ports: dict[str, int] = {}
        self._port_names = port_names
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line, for the ports chosen."""

    @abstractmethod
    async def is_ready(self) -> bool:
        """Return whether the server accepts requests."""

    def environment(self) -> dict[str, str]:
        """Return a minimal environment, without the caller's variables."""
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.directory)}

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise TestbedError(f"{self.name} is not running")
        return self._process.pid

    async def start(self) -> Self:
        """Start and wait until ready, on the ports of the previous start or else on free ones."""
        self.directory.mkdir(parents=True, exist_ok=True)
        choose = not self.ports
        for _ in range(_ATTEMPTS):
            if choose:
                self.ports = dict(zip(self._port_names, free_ports(len(self._port_names)), strict=True))
            if await self._start_once():
                return self
            if not (choose and self._lost_a_port()):
                break
        raise TestbedError(f"{self.name} did not become ready; its log is {self.log}\n{tail(self.log)}")

    async def _start_once(self) -> bool:
        process = self._process = await self._spawn()

        async def is_settled() -> bool:
            return process.returncode is not None or await self.is_ready()

        try:
            await until(is_settled, within_s=self.ready_within_s)
        except TimeoutError:
            await self.stop()
        except BaseException:
            await self.stop()
            raise
        return process.returncode is None

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            return await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", self.death_signal, "--", *self.command()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self.environment(),
            )

    def _lost_a_port(self) -> bool:
        """Return whether another process bound one of the ports after they were chosen."""
        return b"address already in use" in self.log.read_bytes()[self._log_start :].lower()

    async def stop(self) -> None:
        """Terminate the server, and kill it after ``STOP_WITHIN_S``."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGCONT)  # a paused process would not handle SIGTERM
        process.terminate()  # last: signalling an exited process takes its status from the event loop
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def kill(self) -> None:
        """Kill the server; it can be started again on the same ports."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def ended(self) -> int:
        """Wait until the server exits, and return its exit status."""
        if self._process is None:
            raise TestbedError(f"{self.name} is not running")
        return await self._process.wait()

    async def pause(self) -> None:
        """Suspend the process, and return once all threads are stopped; connections stay open."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)

        async def is_paused() -> bool:
            try:
                return is_stopped(pid)
            except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
                return False

        await until(is_paused)

    def resume(self) -> None:
        """Continue a paused process."""
        os.kill(self.pid, signal.SIGCONT)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
