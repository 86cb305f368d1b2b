"""Ports of the sidecars: configured, kept or free, and reserved until daprd has bound them."""

import itertools
import random
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from governor.agent.platforms.local.storage import Ports
from governor.agent.settings import SidecarSettings
from governor.errors import GovernorError, Kind

_RANGE: Final = range(10_000, 32_768)
"""Below Linux's default ephemeral range, so that a kept port stays free."""
_NONE: Final = Ports(0, 0, 0, 0, 0)


def preferred_ports(settings: SidecarSettings, kept: Ports | None) -> Ports:
    """Return the configured ports, else the kept ones; 0 means none yet."""
    before = kept or _NONE
    return Ports(
        http=settings.http_port or before.http,
        grpc=settings.grpc_port or before.grpc,
        internal_grpc=before.internal_grpc,
        public=settings.public_port or before.public,
        metrics=settings.metrics_port or before.metrics,
    )


class ReservedPorts:
    """The ports of one sidecar, reserved until closed: daprd binds them up to seconds after it starts.

    The sockets are bound, so that no other program chooses these ports, but do not listen, so that daprd can bind them
    too: Go sets SO_REUSEADDR.
    """

    def __init__(self, settings: SidecarSettings, kept: Ports | None = None) -> None:
        """Reserve every port except configured ones, which daprd binds or fails on."""
        self._sockets: list[socket.socket] = []
        preferred, given = preferred_ports(settings, kept), preferred_ports(settings, None)
        try:
            self.ports = Ports(
                http=given.http or self._port(preferred.http),
                grpc=given.grpc or self._port(preferred.grpc),
                internal_grpc=self._port(preferred.internal_grpc),
                public=given.public or self._port(preferred.public),
                metrics=given.metrics or self._port(preferred.metrics),
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def _port(self, kept: int) -> int:
        """Reserve the kept port, or a free one if there is none or it is in use."""
        # The second, shared attempt succeeds despite closed connections of the previous daprd in TIME_WAIT.
        if kept and (self._reserve(kept) or self._reserve(kept, shared=True)):
            return kept
        for candidate in _candidates():
            if self._reserve(candidate):
                return candidate
        message = "no free port is left for a sidecar; set its ports in the settings"
        raise GovernorError(Kind.EXHAUSTED, "no-port", message)

    def _reserve(self, port: int, *, shared: bool = False) -> bool:
        sock = socket.socket()
        try:
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("", port))
            # Only after the bind: before it, the bind would succeed on a port that is already reserved.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            sock.close()
            return False
        self._sockets.append(sock)
        return True


def _candidates() -> Iterator[int]:
    first = random.choice(_RANGE)  # noqa: S311 - spreads ports, not security
    return itertools.chain(range(first, _RANGE.stop), range(_RANGE.start, first))
