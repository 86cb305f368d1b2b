"""Cached API discovery of one cluster.

A lookup that misses refreshes the cache, because the kind's definition may just have been created, but at most every
``MISS_TTL_S``. Parsing is ``discovery_documents``.
"""

import asyncio
import hashlib
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client.discovery_documents import ServedResources, parse_root
from governor.kube.client.transport import NOT_MODIFIED, Request, Response
from governor.kube.errors import DECODE_ERRORS
from governor.kube.objects import ApiResource
from governor.process.clock import Clock

TTL_S: Final = 600.0
"""How long the discovery documents are cached."""
MISS_TTL_S: Final = 10.0
"""How long after a fetch a missing kind counts as not served."""

# Plain JSON too, because the documents of an older server make a clearer error than its 406.
_ACCEPT: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
_ROOTS: Final = ("/api", "/apis")
_READYZ: Final = "/readyz"

Send: TypeAlias = Callable[[Request], Awaitable[Response]]
Cache: TypeAlias = weakref.WeakValueDictionary[bytes, ServedResources]


class _Root(msgspec.Struct, frozen=True):
    """The resources below one root path, and the ETag of the response that listed them."""

    served: ServedResources
    etag: str


class Discovery:
    """The kinds that one cluster serves. ``cache`` is shared by all clusters, most of which serve the same kinds."""

    def __init__(self, send: Send, clock: Clock, cache: Cache) -> None:
        self._send = send
        self._clock = clock
        self._cache = cache
        self._lock = asyncio.Lock()
        self._roots: tuple[_Root, ...] = ()
        self._fetched_s = 0.0
        self._generation, self._fetched_generation = 1, 0

    async def find(self, group: str, kind: str, version: str = "") -> ApiResource:
        """Return one kind in one version or in the server's preferred one; NOT_FOUND if it is not served."""
        for max_age_s in (TTL_S, MISS_TTL_S):
            for root in await self._fresh(max_age_s):
                if found := root.served.find(group, kind, version):
                    return found
        raise _not_found(group, kind, version, stale=group in await self.stale_groups())

    async def preferred_resources(self) -> tuple[ApiResource, ...]:
        """Return every kind once, in the version that the server prefers."""
        return tuple(each for root in await self._fresh(TTL_S) for each in root.served.preferred())

    async def served_resources(self) -> tuple[ApiResource, ...]:
        """Return every kind in every version that the server serves."""
        roots = await self._fresh(TTL_S)
        return tuple(each for root in roots for versions in root.served.kinds.values() for each in versions)

    async def stale_groups(self) -> frozenset[str]:
        """Return the groups whose aggregated server does not respond; their kinds may be missing from the others."""
        return frozenset(group for root in await self._fresh(TTL_S) for group in root.served.stale_groups)

    async def require_ready(self) -> None:
        """Raise UNAVAILABLE unless the server is ready, and invalidate the cache.

        After this a missing kind is not served: a server that has just started responds for a while without the kinds
        of its CustomResourceDefinitions.
        """
        try:
            # Not retried: the plain-text 500 of a server that is not ready counts as a failure for the breaker.
            await self._send(Request("GET", _READYZ, retryable=False))
        except GovernorError as error:
            message = f"the server is not ready, so it may not serve all its kinds yet: {error.message}"
            raise GovernorError(Kind.UNAVAILABLE, "kube-not-ready", message) from error
        self.invalidate()

    def invalidate(self) -> None:
        """Make the next call fetch again, even if a fetch is in progress."""
        self._generation += 1

    async def _fresh(self, max_age_s: float) -> tuple[_Root, ...]:
        async with self._lock:
            age_s = self._clock.monotonic() - self._fetched_s
            if self._fetched_generation != self._generation or age_s >= max_age_s:
                generation, fetched_s = self._generation, self._clock.monotonic()
                cached = self._roots or (None,) * len(_ROOTS)
                self._roots = tuple([await self._fetch(*each) for each in zip(_ROOTS, cached, strict=True)])
                self._fetched_generation, self._fetched_s = generation, fetched_s
            return self._roots

    async def _fetch(self, path: str, cached: _Root | None) -> _Root:
        response = await self._send(Request("GET", path, accept=_ACCEPT, etag=cached.etag if cached else ""))
        if cached and response.status == NOT_MODIFIED:
            return cached
        key = hashlib.sha256(response.body).digest()
        served = self._cache.get(key)
        if served is None:
            with _translated(path):
                served = self._cache.setdefault(key, parse_root(response.body))
        return _Root(served, response.etag)


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except DECODE_ERRORS as error:
        message = f"GET {path}: the response is not a discovery document: {error}; check the server address"
        raise GovernorError(Kind.INTERNAL, "kube-discovery", message) from error


def _not_found(group: str, kind: str, version: str, *, stale: bool) -> GovernorError:
    name = f"{kind}.{version}.{group}".strip(".") if version else f"{kind}.{group}".strip(".")
    if stale:
        message = f"{name} is unknown: the server of API group {group} does not respond; check its APIService"
        return GovernorError(Kind.UNAVAILABLE, "kube-group-stale", message)
    message = f"the cluster does not serve {name}; install its CustomResourceDefinition or use another version"
    return GovernorError(Kind.NOT_FOUND, "kube-kind-unknown", message)
