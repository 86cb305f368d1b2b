"""HTTP proxies: reading the URL of one, the one that the environment selects for a server, and tunnels through it.

``HTTPS_PROXY`` and ``NO_PROXY`` have the meaning that Go's programs, and so kubectl and helm, give them. There is no
``HTTP_PROXY``: plain text is for loopback, and loopback is never reached through a proxy.
"""

import asyncio
import base64
import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Final

import msgspec
from yarl import URL

from governor.errors import GovernorError, Kind, invalid
from governor.process.address import Address
from governor.process.tls import is_loopback
from governor.values.secret import Secret

_NOT_IN_URLS: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff?#]")
"""Characters that URL parsers drop, or that begin a query or fragment."""
_PROXY: Final = ("HTTPS_PROXY", "https_proxy")
_NO_PROXY: Final = ("NO_PROXY", "no_proxy")
_MAX_HEAD_BYTES: Final = 64 * 1024


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy that opens a tunnel to a server (CONNECT)."""

    url: str
    authorization: Secret | None = None
    """The value of the header Proxy-Authorization."""


def parse_url(text: str) -> URL | None:
    """Return an http or https URL; None if it is invalid or parsers could read it differently."""
    try:
        url = URL(text)
        port = url.port
    except ValueError:
        return None
    is_address = url.scheme in ("http", "https") and port and url.host and is_host(url.host)
    return url if is_address and not _NOT_IN_URLS.search(text) else None


def is_host(text: str) -> bool:
    """Return whether a text is a host name or an address."""
    try:
        return bool(text.encode("idna")) and not _NOT_IN_URLS.search(text)
    except UnicodeError:
        return False


def read_proxy(text: str) -> Proxy | None:
    """Return the proxy of a URL, which may contain a user and a password; None if it is not an HTTP proxy's."""
    url = parse_url(text)
    if url is None:
        return None
    login = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
    return Proxy(str(url.origin()), Secret(f"Basic {login}") if url.user else None)


def environment_proxy(server: Address, environ: Mapping[str, str] = os.environ) -> Proxy | None:
    """Return the proxy through which a server with TLS is reached, or None if it is reached directly."""
    text, exceptions = _first(environ, _PROXY), _first(environ, _NO_PROXY)
    if not text or is_loopback(server.host) or any(_matches(each, server) for each in exceptions.split(",")):
        return None
    proxy = read_proxy(text if "://" in text else f"http://{text}")
    if proxy is None:
        # The error omits the value, which may contain a password.
        raise invalid("proxy", "HTTPS_PROXY is not the URL of an HTTP proxy: write http://host:port")
    if proxy.url.startswith("https:"):
        # Its certificate would have to be of the CA that is pinned for the server.
        message = "HTTPS_PROXY names a proxy with TLS, which is not supported: use one with http://"
        raise GovernorError(Kind.UNIMPLEMENTED, "proxy", message)
    return proxy


async def open_tunnel(proxy: Proxy, server: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a server through a proxy without TLS; OSError if the proxy cannot be reached or rejects it."""
    url = URL(proxy.url)
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=_MAX_HEAD_BYTES)
    try:
        writer.write(_connect_request(proxy, server))
        await _read_acceptance(proxy, reader)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _read_acceptance(proxy: Proxy, reader: asyncio.StreamReader) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConnectionError(f"the proxy {proxy.url} does not respond to CONNECT") from error
    status = head.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise ConnectionError(f"the proxy {proxy.url} rejects the tunnel: {status}")


def _connect_request(proxy: Proxy, server: Address) -> bytes:
    authorization = f"Proxy-Authorization: {proxy.authorization.reveal()}\r\n" if proxy.authorization else ""
    return f"CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n{authorization}\r\n".encode()


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name].strip() for name in names if environ.get(name)), "")


def _matches(entry: str, server: Address) -> bool:
    """Return whether an entry of NO_PROXY names a server: ``*``, an address, a network, or a domain."""
    pattern, host = entry.strip().lower(), server.host.lower().rstrip(".")
    if pattern == "*":
        return True
    address = _ip(host)
    if "/" in pattern:
        return address is not None and _contains(pattern, address)
    name, port = _split_port(pattern)
    if port and port != str(server.port):
        return False
    if address is not None:
        return _ip(name) == address
    domain = name.removeprefix("*")
    return bool(domain) and (host == domain or host.endswith("." + domain.removeprefix(".")))


def _split_port(pattern: str) -> tuple[str, str]:
    if pattern.startswith("["):
        name, _, port = pattern[1:].partition("]")
        return name, port.removeprefix(":")
    name, _, port = pattern.rpartition(":")
    return (name, port) if name and ":" not in name else (pattern, "")


def _contains(network: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
