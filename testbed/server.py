"""One real server process on loopback: free ports, start, readiness, log, stop.

A server ends with the process that started it, even if that is killed. What a server is (its command line, how
it shows that it is ready) is the subclass's business.
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
"""As many have ports of their own: so nobody takes those of a server that is just being started again."""


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now, where neither outgoing connections nor the sidecars of agents get theirs."""
    free = filter(_is_free, itertools.islice(_own_ports(), len(_PORTS) // _WORKERS))
    ports = list(itertools.islice(free, count))
    if len(ports) < count:
        raise TestbedError(f"of the ports {_PORTS} that tests use, too few are free")
    return ports


@functools.cache
def _own_ports() -> Iterator[int]:
    """In turns, so that none is given again soon: some servers bind theirs only after others have been given some."""
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


def _is_stopped(pid: int) -> bool:
    """Whether no thread runs: each goes on until the kernel has reached it, which takes time on a busy machine."""
    return all(_state(thread) == "T" for thread in Path(f"/proc/{pid}/task").iterdir())


def _state(thread: Path) -> str:
    # It follows the name, which is in brackets and may hold anything.
    return (thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def short_socket(socket: Path, suffix: str = "") -> Path:
    """The place of a Unix socket, if the kernel can take it, also when its server appends something."""
    if len(f"{socket}{suffix}") > _LONGEST_SOCKET:
        raise TestbedError(f"the kernel takes no socket of so long a name: {socket}; use a shorter directory")
    return socket


class Server(ABC):
    """A server that is started with ``async with`` or ``start``, and may be stopped and started again."""

    ready_within_s: ClassVar[float] = 120.0
    death_signal: ClassVar[str] = "KILL"
    """What it gets when the process that started it has gone."""

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
        """The command line, for the ports chosen."""

    @abstractmethod
    async def is_ready(self) -> bool:
        """Whether the server answers."""

    def environment(self) -> dict[str, str]:
        """Nothing of the caller's environment but what a program cannot do without."""
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.directory)}

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise TestbedError(f"{self.name} is not running")
        return self._process.pid

    async def start(self) -> Self:
        """Start and wait until ready, on the ports of the last start or else on free ones."""
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
        """Whether another process took one of the ports between their choice and their use."""
        return b"address already in use" in self.log.read_bytes()[self._log_start :].lower()

    async def stop(self) -> None:
        """End the server gracefully, and by force when the deadline has passed."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGCONT)  # one that is paused would not hear the other
        process.terminate()  # last: whoever signals one that has ended takes its status from the loop
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def kill(self) -> None:
        """End the server as a crash would; it may be started again on its ports."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def ended(self) -> int:
        """The status with which the server ended, once it has."""
        if self._process is None:
            raise TestbedError(f"{self.name} is not running")
        return await self._process.wait()

    async def pause(self) -> None:
        """Stop it where it is, as a machine without processor time would; its connections stay open."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)

        async def is_paused() -> bool:
            try:
                return _is_stopped(pid)
            except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
                return False

        await until(is_paused)

    def resume(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
