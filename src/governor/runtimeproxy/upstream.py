"""The runtime and the image service: connecting to them, and whether they can be reached."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.runtimeproxy.http2.streams import Peer

P = TypeVar("P", bound=asyncio.BaseProtocol)

_TRY_EVERY_S: Final = 0.5
_CONNECT_S: Final = 5.0
_UNTRIED: Final = "nobody has tried it yet"

_log = logging.get_logger(__name__)


class Upstreams:
    """Where each upstream is, and why it cannot be reached if so; one endpoint has one entry."""

    def __init__(self, paths: Mapping[Peer, str], clock: Clock) -> None:
        self._paths = paths
        self._clock = clock
        self.returned: Callable[[], None] = lambda: None
        """Called when an upstream that was lost is there again."""
        self._reasons = dict.fromkeys(paths, _UNTRIED)
        self._away = asyncio.Event()
        self._away.set()

    @property
    def has_image_service(self) -> bool:
        """Whether images have an upstream of their own."""
        return Peer.IMAGES in self._paths

    def unreachable(self, side: Peer) -> str:
        """Why an upstream cannot be reached; nothing when it can. Fits ``Checks.ready``."""
        return self._reasons[side]

    async def connect(self, side: Peer, protocol: Callable[[], P]) -> P:
        """A new connection; OSError if there is none to be had now."""
        path = self._paths[side]
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, made = await asyncio.get_running_loop().create_unix_connection(protocol, path)
        except OSError as error:
            self._note(side, f"{path}: {error.strerror or error}")
            raise
        self._note(side, "")
        return made

    def lost(self, side: Peer) -> None:
        """A connection with an upstream was lost, so it may be gone."""
        self._note(side, f"{self._paths[side]}: a connection was lost")

    async def run(self) -> None:
        """Find out when upstreams that are away come back; says so in the log."""
        while True:
            await self._away.wait()
            for side in [side for side, reason in self._reasons.items() if reason]:
                await self._probe(side)
            if any(self._reasons.values()):
                await self._clock.sleep(_TRY_EVERY_S)
            else:
                self._away.clear()

    async def _probe(self, side: Peer) -> None:
        try:
            probe = await self.connect(side, _Probe)
        except OSError:
            return
        probe.close()

    def _note(self, side: Peer, reason: str) -> None:
        before, self._reasons[side] = self._reasons[side], reason
        if reason:
            self._away.set()
        if bool(before) != bool(reason) or before == _UNTRIED:
            _log.info("upstream is away" if reason else "upstream is there", upstream=side.name.lower(), reason=reason)
        if before not in ("", _UNTRIED) and not reason:
            self.returned()


class _Probe(asyncio.Protocol):
    transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
