"""Packed charts: read from a file, or fetched from a web server."""

import asyncio
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from governor.errors import GovernorError, Kind, invalid
from governor.reconciler.charts.access import Access
from governor.reconciler.charts.download import LOOPBACK, ask, body_of, connecting, too_large

MAX_BYTES: Final = 32 * 1024 * 1024


async def fetch(url: str, access: Access) -> bytes:
    """Return the archive at a URL: file:///, https://, or http:// on loopback."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return await asyncio.to_thread(_read, Path(unquote(parts.path)))
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise invalid("chart-url", f"{url} is not encrypted: use https://")
    async with connecting(url, access.authorities) as session:
        return body_of(await ask(session, url, access.basic(), MAX_BYTES), url)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        message = f"the chart {path} cannot be read: {error.strerror or error}"
        raise GovernorError(Kind.NOT_FOUND, "chart-unreadable", message) from error
    if len(content) > MAX_BYTES:
        raise too_large(str(path), MAX_BYTES)
    return content
