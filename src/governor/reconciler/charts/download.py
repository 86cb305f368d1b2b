"""Bounded downloads over HTTP; failures are GovernorErrors."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import aiohttp

from governor.errors import GovernorError, Kind, invalid

LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
"""Hosts that are accessed without TLS."""
UNAUTHORIZED: Final = 401
_TIMEOUT_S: Final = 60.0
_OK: Final = 200
_READ_BYTES: Final = 256 * 1024
_KINDS: Final = {401: Kind.UNAUTHENTICATED, 403: Kind.DENIED, 404: Kind.NOT_FOUND, 429: Kind.EXHAUSTED}


class Answer(NamedTuple):
    """The answer of a server."""

    status: int
    challenge: str
    """The challenge for clients to authenticate, if the status is 401."""
    body: bytes


@asynccontextmanager
async def connecting(place: str, authorities: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    """Provide a session for one chart; failures of the network are UNAVAILABLE or DEADLINE, and name the place."""
    connector = aiohttp.TCPConnector(ssl=_verification(authorities, place) if authorities else True)
    try:
        async with asyncio.timeout(_TIMEOUT_S), aiohttp.ClientSession(trust_env=True, connector=connector) as session:
            yield session
    except TimeoutError as error:
        message = f"{place} is not fetched within {_TIMEOUT_S:g} s"
        raise GovernorError(Kind.DEADLINE, "chart-unavailable", message) from error
    except aiohttp.ClientError as error:
        message = f"{place} cannot be fetched: {error}"
        raise GovernorError(Kind.UNAVAILABLE, "chart-unavailable", message) from error


def _verification(authorities: str, place: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=authorities)
    except ssl.SSLError as error:
        message = f"the CA certificates for {place} cannot be read: correct the Secret"
        raise invalid("certificates", message) from error


async def ask(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], limit: int) -> Answer:
    """Send a GET request and return the answer; raise EXHAUSTED if it is too long."""
    async with session.get(url, headers=headers) as response:
        found = bytearray()
        async for part in response.content.iter_chunked(_READ_BYTES):
            found += part
            if len(found) > limit:
                raise too_large(url, limit)
        return Answer(response.status, response.headers.get("WWW-Authenticate", ""), bytes(found))


def body_of(answer: Answer, place: str) -> bytes:
    """Return the body of a successful answer; raise for any other."""
    if answer.status != _OK:
        kind = _KINDS.get(answer.status, Kind.UNAVAILABLE)
        raise GovernorError(kind, "chart-unavailable", f"{place}: the server answers with status {answer.status}")
    return answer.body


def too_large(place: str, limit: int) -> GovernorError:
    """Return the error for a chart that exceeds a limit."""
    message = f"{place} has more than {limit // 1024 // 1024} MiB: make the chart smaller"
    return GovernorError(Kind.EXHAUSTED, "chart-too-large", message)
