"""Listen addresses: parsing ``host:port`` and binding sockets."""

import os
import socket
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind, invalid

_BACKLOG: Final = 128


class Address(msgspec.Struct, frozen=True):
    """A host (name or IP address, IPv6 without brackets) and a port; port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse ``host:port`` or ``[ipv6]:port``."""
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        bracketed = bare != host
        if not colon or not bare or (":" in bare and not bracketed):
            raise invalid("address", f"{text!r} is not an address: write host:port, for example 127.0.0.1:8080")
        if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise invalid("address", f"{text!r} has no port from 0 to 65535: write host:port")
        return cls(bare, int(port))


def listen(address: Address) -> socket.socket:
    """Return a non-blocking listening socket; errors name the address."""
    try:
        family, _, _, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(target[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        # A host name that cannot be encoded for DNS raises UnicodeError.
        number = getattr(error, "errno", None) or 0
        # The text of an error of bind() repeats the address.
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        message = f"cannot listen on {address}: {reason}; choose another address or free this one"
        raise GovernorError(Kind.UNAVAILABLE, "listen", message) from error
    listener.setblocking(False)
    return listener


def bound_address(listener: socket.socket) -> Address:
    """Return the address to which a socket is bound."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)
