"""The connections of one program to all its clusters, what is sent through them and what comes back.

One request is one attempt here; repeating it, limiting and judging answers is the client's.
"""

import weakref
from collections.abc import Mapping
from typing import Final, Self

import aiohttp
import msgspec

from governor.kube.served import Served

JSON: Final = "application/json"
TIMEOUT_S: Final = 30.0
NOT_MODIFIED: Final = 304


class Request(msgspec.Struct, frozen=True):
    """One request; ``repeatable`` says whether sending it twice does the same as sending it once."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes = b""
    content_type: str = JSON
    repeatable: bool = True
    timeout_s: float = TIMEOUT_S
    accept: str = JSON
    etag: str = ""
    """Of an answer that is known already: if it is still the same, the answer is 304 and has no body."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Answer(msgspec.Struct, frozen=True):
    """A whole answer that is no refusal."""

    status: int
    body: bytes
    etag: str = ""


class Transport:
    """The connections of one program to all its clusters."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self.tables: weakref.WeakValueDictionary[bytes, Served] = weakref.WeakValueDictionary()

    @property
    def session(self) -> aiohttp.ClientSession:
        """Made at first use: it belongs to the running event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
