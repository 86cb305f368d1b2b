"""Whether the proxy really serves, for ``/healthz`` and for systemd: ready, alive, stopping.

The check does what kubelet does: it connects to the proxy's socket and is answered in HTTP/2. A loop that hangs, a
splice that answers nobody, no free file descriptor, a socket that somebody removed: none of them passes. The runtime
has no part in it, as a restart of the proxy would not help there.
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

_EVERY_S: Final = 10.0
_AGAIN_S: Final = 0.5
_ANSWER_S: Final = 5.0
_PROBE: Final = frames.frame(frames.PING, 0, 0, b"watchdog")
_ECHO: Final = frames.ping_ack(b"watchdog")

_log = logging.get_logger(__name__)


class ServiceManager:
    """Who started the program and wants to hear how it is, if anybody; what systemd calls ``sd_notify``."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        is_for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        text = environ.get("WATCHDOG_USEC", "") if is_for_us else ""
        self.patience_s = int(text) / 1_000_000 if text.isdecimal() and int(text) else None
        """It gives the program up if it hears nothing for so long."""
        self._complained = False

    def tell(self, *words: str) -> None:
        """Say something, as ``READY=1``; whoever cannot hear it is no reason to do anything else."""
        if not self._address:
            return
        # An address of the abstract namespace is written with @ and begins with zero.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
                out.sendto("\n".join(words).encode(), address)
        except OSError as error:
            if not self._complained:
                _log.warning("the service manager cannot be told", address=self._address, error=str(error))
            self._complained = True


class Watchdog:
    """A component that checks again and again, and tells whoever wants to know."""

    def __init__(self, manager: ServiceManager, check: Callable[[], Awaitable[str]], clock: Clock) -> None:
        self._manager = manager
        self._check = check
        self._clock = clock
        self._every_s = _EVERY_S if manager.patience_s is None else manager.patience_s / 2
        self._reason = ""

    def failing(self) -> str:
        """Why the last check failed, or nothing; fits ``Checks.alive``."""
        return self._reason

    async def run(self) -> None:
        """Check until cancelled; ready at the first success."""
        try:
            while reason := await self._check():
                _log.debug("does not serve yet", reason=reason)
                await self._clock.sleep(_AGAIN_S)
            self._manager.tell("READY=1", "STATUS=serving")
            while True:
                await self._clock.sleep(min(self._every_s, _AGAIN_S) if self._reason else self._every_s)
                self._note(await self._check())
        finally:
            self._manager.tell("STOPPING=1", "STATUS=stopping")

    def _note(self, reason: str) -> None:
        if not reason:
            self._manager.tell("WATCHDOG=1", *(["STATUS=serving"] if self._reason else ()))
        elif reason != self._reason:
            _log.error("the proxy does not serve", reason=reason)
            self._manager.tell(f"STATUS=does not serve: {reason}")
        self._reason = reason


async def unserved(endpoint: Endpoint) -> str:
    """Why a client that comes now is not served, or nothing."""
    if reason := endpoint.lost():
        return reason
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(str(endpoint.path))
            try:
                writer.write(frames.PREFACE + frames.settings(()) + _PROBE)
                await reader.readuntil(_ECHO)
            finally:
                writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        return f"{endpoint.path}: {_words(error)}"
    return ""


def _words(error: Exception) -> str:
    match error:
        case TimeoutError():
            return f"no answer within {_ANSWER_S:g} s"
        case OSError():
            return error.strerror or str(error)
        case _:
            return "the connection was closed without an answer"
