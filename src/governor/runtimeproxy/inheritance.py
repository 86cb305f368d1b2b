"""Listening sockets that this process inherits: from systemd, or from the proxy that it replaces.

| variable | set by |
|---|---|
| ``LISTEN_FDS``, ``LISTEN_PID`` | systemd, for a socket unit (``sd_listen_fds``) |
| ``GOVERNOR_HANDOVER`` | the proxy that is replaced; see ``handover`` |

A socket is used if its address is one that the settings name. Sockets of systemd stay when the proxy exits; sockets
that a proxy has created pass to its successor.
"""

import os
import socket
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.address import Address, bound_address, listen

HANDOVER: Final = "GOVERNOR_HANDOVER"
HANDOVER_FORMAT: Final = 1
_FIRST_DESCRIPTOR: Final = 3


class Handover(msgspec.Struct, frozen=True):
    """What a proxy passes to its successor."""

    channel: int
    """Descriptor of the socket on which both agree when to serve."""
    listeners: tuple[int, ...]
    """Descriptors of listening sockets."""
    owned: tuple[str, ...]
    """Paths of those that are removed when the proxy exits."""
    format: int = HANDOVER_FORMAT


class Inheritance:
    """Inherited listening sockets; ``channel`` connects to the proxy that this one replaces, if it does."""

    def __init__(
        self, listeners: Sequence[socket.socket] = (), owned: Sequence[str] = (), channel: socket.socket | None = None
    ) -> None:
        self._listeners = list(listeners)
        self._owned = frozenset(owned)
        self.channel = channel

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> "Inheritance":
        """Return what the environment announces, and remove it from there: no other process inherits it."""
        handover = environ.pop(HANDOVER, "")
        count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
        environ.pop("LISTEN_FDNAMES", None)
        if handover:
            given = _decoded(handover)
            return cls([_listener(each) for each in given.listeners], given.owned, socket.socket(fileno=given.channel))
        if not count.isdecimal() or pid != str(os.getpid()):
            return cls()
        return cls([_listener(_FIRST_DESCRIPTOR + each) for each in range(int(count))])

    def at_path(self, path: Path) -> socket.socket | None:
        """Return the Unix socket with this path, or None."""
        wanted = os.path.realpath(path)
        return self._take(socket.AF_UNIX, lambda each: os.path.realpath(each.getsockname()) == wanted)

    def at_address(self, address: Address) -> socket.socket:
        """Return the TCP socket with this address, or a new one; any port of the host is one for port 0."""

        def matches(each: socket.socket) -> bool:
            bound = bound_address(each)
            return bound.host == address.host and address.port in (0, bound.port)

        return self._take(socket.AF_INET, matches) or self._take(socket.AF_INET6, matches) or listen(address)

    def owns(self, path: Path) -> bool:
        """Return whether this process must remove an inherited socket once it has taken over."""
        return str(path) in self._owned

    def close_rest(self) -> list[str]:
        """Close the sockets that the settings do not name, and return their addresses."""
        addresses = [str(each.getsockname()) for each in self._listeners]
        for each in self._listeners:
            each.close()
        self._listeners.clear()
        return addresses

    def _take(self, family: socket.AddressFamily, matches: "Matches") -> socket.socket | None:
        found = next((each for each in self._listeners if each.family == family and matches(each)), None)
        if found is not None:
            self._listeners.remove(found)
        return found


Matches: TypeAlias = Callable[[socket.socket], bool]


def _decoded(text: str) -> Handover:
    try:
        given = msgspec.json.decode(text, type=Handover)
    except msgspec.DecodeError as error:
        raise _unusable(f"{HANDOVER} cannot be read: {error}") from error
    if given.format != HANDOVER_FORMAT:
        raise _unusable(f"the running proxy hands over in format {given.format}; this version has {HANDOVER_FORMAT}")
    return given


def _unusable(reason: str) -> GovernorError:
    return GovernorError(Kind.PRECONDITION, "handover", f"{reason}; stop the running proxy and start this version")


def _listener(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener
