"""Replacing the running proxy by another version without an outage: both sides of the hand-over.

| the running proxy | its successor |
|---|---|
| starts the successor with its listening sockets | reads settings and plugin files; sends ``started`` |
| accepts no more connections; sends ``serve`` | accepts connections, checks itself; sends ``ready`` and its version |
| names the successor to systemd, ends watches, finishes its calls, exits | |

If the successor exits or does not do its part in time, the running proxy accepts connections again. What waits
meanwhile waits in the sockets' backlog. The files of the sockets are the running proxy's until ``ready``.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.child import detached
from governor.process.child.detached import Detached
from governor.process.telemetry import logging
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.inheritance import HANDOVER, Handover
from governor.runtimeproxy.ops.control import Upgraded
from governor.runtimeproxy.ops.watchdog import ServiceManager

START_TIMEOUT_S: Final = 30.0
"""How long a successor may take to start, or to exit if it cannot."""
SERVE_TIMEOUT_S: Final = 10.0
"""Neither proxy may accept connections for so long; with the watchdog's interval it is less than ``WatchdogSec``."""
RETIRE_S: Final = 900.0
"""How long a replaced proxy may finish its calls; image pulls can take minutes."""
_LINE_BYTES: Final = 1024
_STARTED: Final = "started"
_SERVE: Final = "serve"
_READY: Final = "ready"

_log = logging.get_logger(__name__)


class Gate(Protocol):
    """A server that can stop and resume accepting connections; open ones continue."""

    def pause(self) -> None:
        """Accept no more connections."""

    async def resume(self) -> None:
        """Accept connections again."""


class Retiring(Gate, Protocol):
    """The server of kubelet's socket."""

    async def retire(self, limit_s: float) -> None:
        """Accept no more connections, end watches, and return when all calls have ended."""


class Successor:
    """Starts the proxy that replaces this one, and retires this one."""

    def __init__(
        self,
        command: Sequence[str],
        listeners: Sequence[socket.socket],
        endpoints: Sequence[Endpoint],
        splice: Retiring,
        servers: Sequence[Gate],
        manager: ServiceManager,
    ) -> None:
        self._command = command
        self._listeners = [*listeners, *(each.listener for each in endpoints)]
        self._endpoints = endpoints
        self._splice = splice
        self._servers = (splice, *servers)
        self._manager = manager
        self._is_upgrading = False
        self._replaced = asyncio.Event()
        self._task: asyncio.Task[Upgraded] | None = None

    async def run(self) -> None:
        """Once this proxy is replaced, finish its calls and end the program."""
        await self._replaced.wait()
        await self._splice.retire(RETIRE_S)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.get_running_loop().create_future()

    async def upgrade(self) -> Upgraded:
        """Start a successor and hand over to it; raise UNAVAILABLE if it does not become ready."""
        if self._is_upgrading:
            raise GovernorError(Kind.CONFLICT, "upgrade", "the proxy is being replaced already")
        if not self._command:
            message = "the proxy does not know the command that started it; restart it by `governor runtime-proxy`"
            raise GovernorError(Kind.PRECONDITION, "upgrade", message)
        self._is_upgrading = True
        # In a task of its own: the caller may go away while neither proxy accepts connections.
        self._task = asyncio.create_task(self._replace())
        return await asyncio.shield(self._task)

    async def _replace(self) -> Upgraded:
        try:
            return await self._hand_over_to_new()
        finally:
            self._is_upgrading = self._replaced.is_set()

    async def _hand_over_to_new(self) -> Upgraded:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await detached.start(
                    self._command, env=self._environment(theirs), descriptors=self._descriptors(theirs)
                )
            try:
                version = await self._hand_over(_Channel(ours))
            except (OSError, EOFError) as error:
                raise await self._failed(process, error) from error
        process.release()
        for endpoint in self._endpoints:
            endpoint.disown()
        self._manager.hand_over(process.pid)
        _log.info("replaced by another proxy", pid=process.pid, version=version)
        self._replaced.set()
        return Upgraded(os.getpid(), process.pid, version)

    async def _hand_over(self, channel: "_Channel") -> str:
        async with _limit(START_TIMEOUT_S, "start"):
            await channel.expect(_STARTED)
        for gate in self._servers:
            gate.pause()
        async with _limit(SERVE_TIMEOUT_S, "serve"):
            await channel.send(_SERVE)
            return await channel.expect(_READY)

    async def _failed(self, process: Detached, error: Exception) -> GovernorError:
        """Continue to serve, end the successor, and return the reason."""
        for gate in self._servers:
            await gate.resume()
        reason = str(error)
        if not isinstance(error, TimeoutError):
            # Its end of the channel is closed, so it is about to exit by itself; this proxy serves again.
            has_exited = await process.exits_within(START_TIMEOUT_S)
            reason = "" if has_exited else f"closed its channel and did not exit within {START_TIMEOUT_S:.0f} s"
        exit_ = await process.stop(0)
        reason = reason or exit_.summary
        _log.error("the new version did not start; this one continues", pid=process.pid, reason=reason)
        message = f"the new version {reason}; the running one continues. The log has the reason."
        return GovernorError(Kind.UNAVAILABLE, "upgrade-failed", message)

    def _descriptors(self, channel: socket.socket) -> list[int]:
        return [*(each.fileno() for each in self._listeners), channel.fileno()]

    def _environment(self, channel: socket.socket) -> Mapping[str, str]:
        *listeners, _ = self._descriptors(channel)
        owned = tuple(str(each.path) for each in self._endpoints if each.is_owned)
        handover = Handover(channel.fileno(), tuple(listeners), owned)
        # The watchdog's interval applies to the successor as well, but not this process's id.
        inherited = {key: value for key, value in os.environ.items() if key != "WATCHDOG_PID"}
        return inherited | {HANDOVER: msgspec.json.encode(handover).decode()}


@contextlib.asynccontextmanager
async def _limit(seconds: float, act: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TimeoutError(f"did not {act} within {seconds:.0f} s") from error


class Predecessor:
    """The proxy that this one replaces, if it does; without one every method returns at once."""

    def __init__(self, channel: socket.socket | None) -> None:
        self._socket = channel
        self._channel = None if channel is None else _Channel(channel)

    async def wait_until_it_pauses(self) -> None:
        """Return when this proxy may serve: the other one has stopped accepting connections, or is gone."""
        if self._channel is not None:
            with contextlib.suppress(OSError, EOFError):
                await self._channel.send(_STARTED)
                await self._channel.expect(_SERVE)

    async def take_over(self, version: str) -> None:
        """Retire the other proxy: this one serves."""
        if self._channel is not None and self._socket is not None:
            with contextlib.suppress(OSError), self._socket:
                await self._channel.send(f"{_READY} {version}")
            self._channel = None


class _Channel:
    """Lines of text on a stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._received = b""

    async def send(self, line: str) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, f"{line}\n".encode())

    async def expect(self, word: str) -> str:
        """Return the rest of a line that begins with ``word``; raise EOFError if another one or none is sent."""
        while b"\n" not in self._received and len(self._received) < _LINE_BYTES:
            data = await asyncio.get_running_loop().sock_recv(self._socket, _LINE_BYTES)
            if not data:
                raise EOFError
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        first, _, rest = line.decode(errors="replace").partition(" ")
        if first != word:
            raise EOFError
        return rest
