"""Self-check of the proxy, for ``/healthz`` and for systemd (ready, alive, stopping).

The check connects to the proxy's socket as kubelet does and expects an answer of the proxy's own: in HTTP/2 a PING
acknowledgement, in HTTP/1.1 the response that only a process's own requests get. It fails if the
event loop or the splice hangs, file descriptors run out, or the socket was removed. It does not involve the runtime,
whose failures a restart of the proxy would not fix.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.http2 import frames

_INTERVAL_S: Final = 10.0
_RETRY_S: Final = 0.5
_TIMEOUT_S: Final = 5.0
_PREFACE_AND_PING: Final = frames.PREFACE + frames.settings(()) + frames.frame(frames.PING, 0, 0, b"watchdog")
_PING_ACK: Final = frames.ping_ack(b"watchdog")

_log = logging.get_logger(__name__)


class ServiceManager:
    """The service manager that started the program, if any; the protocol is systemd's ``sd_notify``."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        is_for_this_process = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        text = environ.get("WATCHDOG_USEC", "") if is_for_this_process else ""
        self.watchdog_s = int(text) / 1_000_000 if text.isdecimal() and int(text) else None
        """The manager restarts the program if it is not notified for this long."""
        self._logged = False
        self.is_handed_over = False
        """Whether another process is the main one, and has the proxy's socket."""

    def notify(self, *assignments: str) -> None:
        """Send assignments such as ``READY=1``. Notification failures are logged once and otherwise ignored."""
        if not self._address:
            return
        # An abstract address is written with @ and starts with a null byte.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
                out.sendto("\n".join(assignments).encode(), address)
        except OSError as error:
            if not self._logged:
                _log.warning("cannot notify the service manager", address=self._address, error=str(error))
            self._logged = True

    def hand_over(self, pid: int) -> None:
        """Name another process as the main one, and notify no more."""
        self.notify(f"MAINPID={pid}")
        self._address = ""
        self.is_handed_over = True


class Watchdog:
    """Component that checks the proxy periodically and notifies the service manager.

    ``serving`` is called after the first success. It ends with the hand-over: a check would reach the successor.
    """

    def __init__(
        self,
        manager: ServiceManager,
        check: Callable[[], Awaitable[str]],
        clock: Clock,
        serving: Callable[[], Awaitable[None]],
    ) -> None:
        self._manager = manager
        self._serving = serving
        self._check = check
        self._clock = clock
        self._interval_s = _INTERVAL_S if manager.watchdog_s is None else manager.watchdog_s / 2
        self._reason = ""

    def failing(self) -> str:
        """Return why the last check failed, or ``""``; suits ``Checks.alive``."""
        return self._reason

    async def run(self) -> None:
        """Check until the proxy is replaced; notify READY after the first success."""
        try:
            while reason := await self._check():
                _log.debug("not serving yet", reason=reason)
                await self._clock.sleep(_RETRY_S)
            self._manager.notify("READY=1", "STATUS=serving")
            await self._serving()
            await self._pause()
            while not self._manager.is_handed_over:
                await self._check_again()
                await self._pause()
            await asyncio.get_running_loop().create_future()
        finally:
            self._manager.notify("STOPPING=1", "STATUS=stopping")

    async def _pause(self) -> None:
        await self._clock.sleep(min(self._interval_s, _RETRY_S) if self._reason else self._interval_s)

    async def _check_again(self) -> None:
        reason = await self._check()
        # If the proxy was replaced meanwhile, the check has reached its successor.
        if not self._manager.is_handed_over:
            self._report(reason)

    def _report(self, reason: str) -> None:
        if not reason:
            self._manager.notify("WATCHDOG=1", *(["STATUS=serving"] if self._reason else ()))
        elif reason != self._reason:
            _log.error("not serving", reason=reason)
            self._manager.notify(f"STATUS=not serving: {reason}")
        self._reason = reason


async def probe(endpoint: Endpoint, request: bytes = _PREFACE_AND_PING, answer: bytes = _PING_ACK) -> str:
    """Return why a new client would not be served, or ``""``."""
    if reason := endpoint.unreachable():
        return reason
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(endpoint.path))
            try:
                writer.write(request)
                await reader.readuntil(answer)
            finally:
                writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        return f"{endpoint.path}: {_reason(error)}"
    return ""


def _reason(error: Exception) -> str:
    match error:
        case TimeoutError():
            return f"no response within {_TIMEOUT_S:g} s"
        case OSError():
            return error.strerror or str(error)
        case _:
            return "the connection was closed without a response"
