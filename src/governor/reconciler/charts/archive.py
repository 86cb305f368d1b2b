"""Packed charts: read from a file, or fetched from a web server."""

import asyncio
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import aiohttp

from governor.errors import GovernorError, Kind, invalid

MAX_BYTES: Final = 32 * 1024 * 1024
_TIMEOUT_S: Final = 60.0
_OK: Final = 200
_SERVER_ERRORS: Final = 500
_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_READ_BYTES: Final = 256 * 1024


async def fetch(url: str) -> bytes:
    """Return the archive at a URL: file:///, https://, or http:// on loopback."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return await asyncio.to_thread(_read, Path(unquote(parts.path)))
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise invalid("chart-url", f"{url} is not encrypted: use https://")
    try:
        async with asyncio.timeout(_TIMEOUT_S), aiohttp.ClientSession(trust_env=True) as session:
            return await _download(session, url)
    except TimeoutError as error:
        raise GovernorError(Kind.DEADLINE, "chart-unavailable", f"{url}: no answer within {_TIMEOUT_S:g} s") from error
    except aiohttp.ClientError as error:
        message = f"{url} cannot be fetched: {error}; the chart is tried again"
        raise GovernorError(Kind.UNAVAILABLE, "chart-unavailable", message) from error


async def _download(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as response:
        if response.status != _OK:
            kind = Kind.UNAVAILABLE if response.status >= _SERVER_ERRORS else Kind.NOT_FOUND
            raise GovernorError(kind, "chart-unavailable", f"{url}: the server answers with {response.status}")
        found = bytearray()
        async for part in response.content.iter_chunked(_READ_BYTES):
            found += part
            if len(found) > MAX_BYTES:
                raise _too_large(url)
        return bytes(found)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        message = f"the chart {path} cannot be read: {error.strerror or error}"
        raise GovernorError(Kind.NOT_FOUND, "chart-unreadable", message) from error
    if len(content) > MAX_BYTES:
        raise _too_large(str(path))
    return content


def _too_large(place: str) -> GovernorError:
    message = f"{place} has more than {MAX_BYTES // 1024 // 1024} MiB: make the chart smaller"
    return GovernorError(Kind.EXHAUSTED, "chart-too-large", message)
