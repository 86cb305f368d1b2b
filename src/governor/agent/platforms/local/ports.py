"""Where the sidecars listen: on ports given, kept or free, which nobody else takes before daprd has them."""

import itertools
import random
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from governor.agent.settings import SidecarSettings
from governor.agent.storage import Ports
from governor.errors import GovernorError, Kind

_RANGE: Final = range(10_000, 32_768)
"""Below the ports that Linux gives to outgoing connections by default: a kept port must stay free."""
_NONE: Final = Ports(0, 0, 0, 0, 0)


def preferred_ports(settings: SidecarSettings, kept: Ports | None) -> Ports:
    """The ports given, else those kept; 0 is one that is still to be found."""
    before = kept or _NONE
    return Ports(
        http=settings.http_port or before.http,
        grpc=settings.grpc_port or before.grpc,
        internal_grpc=before.internal_grpc,
        public=settings.public_port or before.public,
        metrics=settings.metrics_port or before.metrics,
    )


class ReservedPorts:
    """The ports of one sidecar, held from their choice on: daprd binds them up to seconds after it was started.

    They are bound here, so that whoever looks for a free port passes them by, and not listened on, so that daprd gets
    them: as every Go program it shares an address with a socket that does not listen.
    """

    def __init__(self, settings: SidecarSettings, kept: Ports | None = None) -> None:
        """A given port is used in any case; daprd says so if another program has it."""
        self._sockets: list[socket.socket] = []
        wanted, given = preferred_ports(settings, kept), preferred_ports(settings, None)
        try:
            self.ports = Ports(
                http=given.http or self._port(wanted.http),
                grpc=given.grpc or self._port(wanted.grpc),
                internal_grpc=self._port(wanted.internal_grpc),
                public=given.public or self._port(wanted.public),
                metrics=given.metrics or self._port(wanted.metrics),
            )
        except BaseException:
            self.let_go()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Hold them no longer."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def _port(self, kept: int) -> int:
        """The kept port, or a free one if there is none or another program has it."""
        # Connections of the last daprd that have just ended are no obstacle for the next.
        if kept and (self._hold(kept) or self._hold(kept, shared=True)):
            return kept
        for candidate in _candidates():
            if self._hold(candidate):
                return candidate
        message = "no free port is left for a sidecar; give its ports in the settings"
        raise GovernorError(Kind.EXHAUSTED, "no-port", message)

    def _hold(self, port: int, *, shared: bool = False) -> bool:
        holder = socket.socket()
        try:
            if shared:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", port))
            # Only now: before, it would have been bound beside another holder.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except OSError:
            holder.close()
            return False
        self._sockets.append(holder)
        return True


def _candidates() -> Iterator[int]:
    first = random.choice(_RANGE)  # noqa: S311 - spreads ports, guards nothing
    return itertools.chain(range(first, _RANGE.stop), range(_RANGE.start, first))
