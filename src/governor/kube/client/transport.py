"""What the cluster clients of one program share: connections, TLS contexts, tables of kinds, time, chance, counters.

Also what they send and what comes back. One request to one cluster is ``endpoint``'s business.
"""

import random
import weakref
from collections.abc import Mapping
from typing import Final, Self

import aiohttp
import msgspec

import governor
from governor.kube.client.metrics import RestMetrics
from governor.kube.client.served import Served
from governor.kube.config.trust import Contexts
from governor.process.clock import Clock, SystemClock
from governor.process.telemetry.instruments import Registry

JSON: Final = "application/json"
TIMEOUT_S: Final = 30.0
CONNECT_S: Final = 10.0
IDLE_S: Final = 2.0
"""How long an unused connection is kept. It holds a TLS context, so longer costs memory where clusters are many: 1,000
clients used one after another took 34 KiB each with aiohttp's 15 s, and 20 KiB with this."""
NOT_MODIFIED: Final = 304


class Request(msgspec.Struct, frozen=True):
    """One request; ``repeatable`` says whether sending it twice does the same as sending it once.

    Without it, only a method that HTTP does not call idempotent is surely sent once: aiohttp itself sends others again
    when a kept connection turns out to be dead.
    """

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes = b""
    content_type: str = JSON
    repeatable: bool = True
    timeout_s: float = TIMEOUT_S
    """For the whole answer and all attempts; of a stream, for its beginning."""
    accept: str = JSON
    etag: str = ""
    """Of an answer that is known already: if it is still the same, the answer is 304 and has no body."""

    def __repr__(self) -> str:
        """Without the body, which may hold a Secret."""
        return f"{self.method} {self.path}"


class Answer(msgspec.Struct, frozen=True):
    """A whole answer that is no refusal."""

    status: int
    body: bytes
    etag: str = ""

    def __repr__(self) -> str:
        """Without the body, which may hold a Secret."""
        return f"Answer({self.status}, {len(self.body)} bytes)"


class Transport:
    """Made once per program and handed to every client."""

    def __init__(
        self,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.chance = chance or random.Random()  # noqa: S311 - spreads waits
        self.metrics = RestMetrics(registry) if registry else None
        self.contexts = Contexts()
        self.tables: weakref.WeakValueDictionary[bytes, Served] = weakref.WeakValueDictionary()
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Made at first use: it belongs to the running event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
                headers={"User-Agent": f"governor/{governor.__version__}"},
                skip_auto_headers=("Accept-Encoding",),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                # Unpacking is ours, within a limit.
                auto_decompress=False,
                trust_env=False,
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
