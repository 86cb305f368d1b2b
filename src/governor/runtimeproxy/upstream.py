"""The upstream sockets, runtime and image service: connects to them and tracks whether they can be reached."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.runtimeproxy.http2.streams import Peer

P = TypeVar("P", bound=asyncio.BaseProtocol)

_PROBE_INTERVAL_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 5.0
_CONNECT_RETRY_S: Final = 1.0
"""How long a call waits for an unreachable upstream, for example during a restart."""
_CONNECT_INTERVAL_S: Final = 0.05
_NOT_PROBED: Final = "not connected yet"

_log = logging.get_logger(__name__)


class Upstreams:
    """The upstreams' socket paths, and for each the reason why it cannot be reached, if so."""

    def __init__(self, paths: Mapping[Peer, str], clock: Clock) -> None:
        self._paths = paths
        self._clock = clock
        self.recovered: Callable[[], None] = lambda: None
        """Called when a lost upstream can be reached again."""
        self._reasons = dict.fromkeys(paths, _NOT_PROBED)
        self._any_unreachable = asyncio.Event()
        self._any_unreachable.set()

    @property
    def has_image_service(self) -> bool:
        """Whether the image service has its own socket."""
        return Peer.IMAGES in self._paths

    def path(self, peer: Peer) -> str:
        """Return the path of an upstream's socket."""
        return self._paths[peer]

    def unreachable(self, peer: Peer) -> str:
        """Return why an upstream cannot be reached, or "" if it can. A check for ``Checks.ready``."""
        return self._reasons[peer]

    async def connect(self, peer: Peer, protocol: Callable[[], P]) -> P:
        """Open a connection; raise OSError if the upstream cannot be reached."""
        path = self._paths[peer]
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, connected = await asyncio.get_running_loop().create_unix_connection(protocol, path)
        except OSError as error:
            self._set_reason(peer, f"{path}: {error.strerror or error}")
            raise
        self._set_reason(peer, "")
        return connected

    async def connect_patiently(self, peer: Peer, protocol: Callable[[], P], is_wanted: Callable[[], bool]) -> P:
        """Open a connection, for a while also to an upstream that cannot be reached; raise OSError like ``connect``."""
        until = asyncio.get_running_loop().time() + _CONNECT_RETRY_S
        while True:
            try:
                return await self.connect(peer, protocol)
            except OSError:
                if not is_wanted() or asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(_CONNECT_INTERVAL_S)

    def connection_lost(self, peer: Peer) -> None:
        """Count an upstream as unreachable until a probe succeeds, because it closed a connection."""
        self._set_reason(peer, f"{self._paths[peer]}: a connection was lost")

    async def run(self) -> None:
        """Probe unreachable upstreams until they recover."""
        while True:
            await self._any_unreachable.wait()
            for peer in [peer for peer, reason in self._reasons.items() if reason]:
                await self._probe(peer)
            if any(self._reasons.values()):
                await self._clock.sleep(_PROBE_INTERVAL_S)
            else:
                self._any_unreachable.clear()

    async def _probe(self, peer: Peer) -> None:
        try:
            probe = await self.connect(peer, _Probe)
        except OSError:
            return
        probe.close()

    def _set_reason(self, peer: Peer, reason: str) -> None:
        before, self._reasons[peer] = self._reasons[peer], reason
        if reason:
            self._any_unreachable.set()
        if bool(before) != bool(reason) or before == _NOT_PROBED:
            _log.info(
                "upstream unreachable" if reason else "upstream reachable", upstream=peer.name.lower(), reason=reason
            )
        if before not in ("", _NOT_PROBED) and not reason:
            self.recovered()


class _Probe(asyncio.Protocol):
    transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
