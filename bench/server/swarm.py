"""The client process: all agents of a benchmark, driven by commands on standard input, one JSON object per line.

``python -m bench.server.swarm``; ``Swarm`` starts and commands it. Times are those of the machine's monotonic clock,
which all its processes share.
"""

import asyncio
import random
import ssl
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.server.agents import POLL_S, Address, Identity, PollAgent, Reports, Sender, WatchAgent, reconnect_delay_s
from governor.domain.reports import Check
from governor.wire.rest import PREFIX

SENDERS: Final = 64
"""Connections on which all agents send their reports, as behind an ingress."""
_CONNECTING: Final = 200
"""Connections that are being opened at once."""
_LIMIT: Final = 2**26


class Setup(msgspec.Struct, frozen=True):
    """Where the server is, how many agents there are, and the key that signs the tokens of all of them."""

    host: str
    port: int
    tls: bool
    agents: int
    key: bytes


def name_of(number: int) -> str:
    """Return the name of a runtime."""
    return f"r-{number:05d}"


class Fleet:
    """All agents of this process."""

    def __init__(self, setup: Setup) -> None:
        self._address = Address(setup.host, setup.port, _insecure_context() if setup.tls else None)
        key = Ed25519PrivateKey.from_private_bytes(setup.key)
        identities = [Identity(name_of(number), key) for number in range(setup.agents)]
        self._watching = [WatchAgent(each, self._delivered) for each in identities]
        self._polling = [PollAgent(each, self._address) for each in identities]
        self._all: list[WatchAgent | PollAgent] = [*self._watching, *self._polling]
        self._queue: deque[tuple[bytes, Callable[[bool], None]]] = deque()
        self._senders = [Sender(self._queue, self._address) for _ in range(SENDERS)]
        self._reports = Reports()
        self._acknowledges = False
        self._acknowledged: list[float] = []
        self._rejected = 0
        self._rng = random.Random()
        self._beating: asyncio.Task[None] | None = None
        self._connected: asyncio.Task[None] | None = None

    async def watch(self) -> float:
        """Open all watches; return when the last one was accepted."""
        await self._connect_all()
        self._connected = asyncio.create_task(self._keep_connected())
        return await self._all_open()

    async def poll(self) -> float:
        """Begin to poll, spread evenly over the interval; return when all have their first version."""
        for number, agent in enumerate(self._polling):
            agent.begin(POLL_S * number / len(self._polling))
        return await self._wait(lambda: all(each.stamp for each in self._polling))

    async def leave(self) -> float:
        """Close all connections."""
        if self._connected is not None:
            self._connected.cancel()
        for agent in self._all:
            agent.close()
        return await self._wait(lambda: not any(each.is_open for each in self._watching))

    async def stall(self, count: int) -> None:
        """Let the first agents stop reading."""
        for agent in self._watching[:count]:
            agent.pause()

    async def expect(self, *, acknowledge: bool = False) -> None:
        """Forget what was received; with ``acknowledge`` every following delivery is acknowledged."""
        self._acknowledges = acknowledge
        self._acknowledged.clear()
        self._rejected = 0
        for agent in self._all:
            agent.received_s = 0.0

    async def received(
        self, *, polling: bool = False, at_least: int | None = None, within_s: float = 300
    ) -> list[float]:
        """Wait until all agents, or some of them, have received something, and return when each did."""
        agents = self._polling if polling else self._watching
        count = len(agents) if at_least is None else at_least
        await self._wait(lambda: sum(each.received_s > 0 for each in agents) >= count, within_s)
        return sorted(each.received_s for each in agents if each.received_s > 0)

    async def acknowledged(self, *, within_s: float = 300) -> dict[str, Any]:
        """Wait until the server has accepted a report of every agent; return when the last one was."""
        last = await self._wait(lambda: len(self._acknowledged) >= len(self._watching), within_s)
        return {"last": self._acknowledged[-1] if self._acknowledged else last, "rejected": self._rejected}

    async def reconnected(self, *, within_s: float = 300) -> float:
        """Wait until all watches are open again; return when they were."""
        return await self._all_open(within_s)

    async def beat(self, interval_s: float) -> None:
        """Confirm the last report of each agent at this interval, until it is 0."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        if interval_s:
            self._beating = asyncio.create_task(self._beat(interval_s))

    async def _beat(self, interval_s: float) -> None:
        pause_s = interval_s / len(self._watching)
        while True:
            for agent in self._watching:
                body = msgspec.json.encode(Check(1, 1, agent.session, 1))
                head = f"POST {PREFIX}/runtimes/{agent.identity.name}/checks HTTP/1.1\r\nHost: x\r\n"
                token = f"Authorization: Bearer {agent.identity.token}\r\nContent-Type: application/json\r\n"
                self._send(f"{head}{token}Content-Length: {len(body)}\r\n\r\n".encode() + body, lambda _: None)
                await asyncio.sleep(pause_s)

    def _delivered(self, agent: WatchAgent, signed: bytes) -> None:
        if self._acknowledges:
            self._send(self._reports.request(agent, signed), self._answered)

    def _answered(self, is_accepted: bool) -> None:
        self._acknowledged.append(time.monotonic())
        self._rejected += not is_accepted

    def _send(self, request: bytes, done: Callable[[bool], None]) -> None:
        self._queue.append((request, done))
        for sender in self._senders:
            if not self._queue:
                return
            sender.send_next()

    async def _connect_all(self) -> None:
        waiting = asyncio.Semaphore(_CONNECTING)

        async def connect(agent: WatchAgent) -> None:
            async with waiting:
                await self._connect(agent)

        async with asyncio.TaskGroup() as group:
            for agent in self._watching:
                group.create_task(connect(agent))

    async def _connect(self, agent: WatchAgent) -> None:
        host, port, tls = self._address
        while True:
            try:
                await asyncio.get_running_loop().create_connection(lambda: agent, host, port, ssl=tls)
            except OSError:
                await asyncio.sleep(reconnect_delay_s(self._rng))
            else:
                return

    async def _keep_connected(self) -> None:
        """Connect agents again whose watch was closed, each after a jittered delay."""

        async def reconnect(agent: WatchAgent) -> None:
            await asyncio.sleep(reconnect_delay_s(self._rng))
            await self._connect(agent)

        connecting: dict[str, asyncio.Task[None]] = {}
        while True:
            for agent in self._watching:
                name = agent.identity.name
                if not agent.is_connected and (name not in connecting or connecting[name].done()):
                    connecting[name] = asyncio.create_task(reconnect(agent))
            await asyncio.sleep(0.1)

    async def _all_open(self, within_s: float = 300) -> float:
        return await self._wait(lambda: all(each.is_open for each in self._watching), within_s)

    async def _wait(self, is_true: Callable[[], bool], within_s: float = 300) -> float:
        """Wait for a condition; return when it was true, or when the wait ended."""
        end_s = time.monotonic() + within_s
        while not is_true() and time.monotonic() < end_s:  # noqa: ASYNC110 - too many agents to signal each event
            await asyncio.sleep(0.01)
        return time.monotonic()


def _insecure_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def serve_commands() -> None:
    """Run the commands of standard input until it is closed."""
    reader = asyncio.StreamReader(limit=_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    fleet = Fleet(msgspec.json.decode(await reader.readline(), type=Setup))
    while line := await reader.readline():
        command = msgspec.json.decode(line)
        result = await getattr(fleet, command.pop("do"))(**command)
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.buffer.flush()


class Swarm:
    """The client process as seen by the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    async def do(self, command: str, **options: Any) -> Any:
        """Run a command of ``Fleet`` and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode({"do": command, **options}) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the client process has ended")
        return msgspec.json.decode(line)


@asynccontextmanager
async def swarm(setup: Setup) -> AsyncIterator[Swarm]:
    """Run the client process."""
    command = [sys.executable, "-m", "bench.server.swarm"]
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "--", *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        limit=_LIMIT,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(setup) + b"\n")
    try:
        yield Swarm(process)
    finally:
        process.stdin.close()
        process.kill()
        await process.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_commands())
