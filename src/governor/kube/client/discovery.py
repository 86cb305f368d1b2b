"""Which kinds one cluster serves, asked when first needed and kept for a while.

A kind that is not there is asked for anew, because it may have come with a definition a moment ago; but not again and
again, because it may never come. How the documents read is in ``served``.
"""

import asyncio
import hashlib
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client.served import GroupVersion, Served, merge, read_root, read_version, unread
from governor.kube.client.transport import NOT_MODIFIED, Answer, Request
from governor.kube.errors import UNDECODABLE, ApiError
from governor.kube.objects import ApiResource
from governor.process.clock import Clock

LASTS_S: Final = 600.0
"""How long an answer is used."""
MISS_S: Final = 10.0
"""How long after an answer a kind that it lacks is believed not to be there."""

_AGGREGATED: Final = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" for version in ("v2", "v2beta1")
)
_ACCEPT: Final = f"{_AGGREGATED},application/json"
_ROOTS: Final = ("/api", "/apis")
_READY: Final = "/readyz"

Exchange: TypeAlias = Callable[[Request], Awaitable[Answer]]
Tables: TypeAlias = weakref.WeakValueDictionary[bytes, Served]


class _Part(msgspec.Struct, frozen=True):
    """What is below one root, and the mark by which the server knows that answer again."""

    served: Served
    etag: str


class Discovery:
    """The kinds of one cluster; ``tables`` is shared with other clusters, most of which serve the same."""

    def __init__(self, exchange: Exchange, clock: Clock, tables: Tables) -> None:
        self._exchange = exchange
        self._clock = clock
        self._tables = tables
        self._turn = asyncio.Lock()
        self._parts: tuple[_Part, ...] = ()
        self._asked_s = 0.0
        self._wanted, self._known = 1, 0

    async def find(self, group: str, kind: str, version: str = "") -> ApiResource:
        """One kind in one version, or in the one that the server prefers; NOT_FOUND if it is not served."""
        for lasts_s in (LASTS_S, MISS_S):
            for part in await self._fresh(lasts_s):
                if found := part.served.find(group, kind, version):
                    return found
        raise _missing(group, kind, version, stale=group in await self.stale_groups())

    async def preferred_resources(self) -> tuple[ApiResource, ...]:
        """Every kind once, in the version that the server prefers."""
        return tuple(each for part in await self._fresh(LASTS_S) for each in part.served.preferred())

    async def stale_groups(self) -> frozenset[str]:
        """Return the groups whose aggregated server does not respond; their kinds may be missing from the others."""
        return frozenset(group for part in await self._fresh(LASTS_S) for group in part.served.stale)

    async def require_ready(self) -> None:
        """Make sure that what the next answer lacks is not there, and forget earlier ones; otherwise UNAVAILABLE.

        A server that has just started answers for a while without the kinds of its CustomResourceDefinitions.
        """
        try:
            # Once: what it says while it is not ready looks like the failure of something before it.
            await self._exchange(Request("GET", _READY, repeatable=False))
        except GovernorError as error:
            message = f"whether the server knows all its kinds yet cannot be seen: {error.message}"
            raise GovernorError(Kind.UNAVAILABLE, "kube-not-ready", message) from error
        self.invalidate()

    def invalidate(self) -> None:
        """Ask the server at the next call, even if an answer to an earlier one is under way."""
        self._wanted += 1

    async def _fresh(self, lasts_s: float) -> tuple[_Part, ...]:
        async with self._turn:
            if self._known != self._wanted or self._clock.monotonic() - self._asked_s >= lasts_s:
                wanted, asked_s = self._wanted, self._clock.monotonic()
                known = self._parts or (None,) * len(_ROOTS)
                self._parts = tuple([await self._read(*each) for each in zip(_ROOTS, known, strict=True)])
                self._known, self._asked_s = wanted, asked_s
            return self._parts

    async def _read(self, path: str, known: _Part | None) -> _Part:
        answer = await self._exchange(Request("GET", path, accept=_ACCEPT, etag=known.etag if known else ""))
        if known and answer.status == NOT_MODIFIED:
            return known
        key = hashlib.sha256(answer.body).digest()
        served = self._tables.get(key)
        if served is None:
            with _readable(path):
                root = read_root(answer.body)
            if not isinstance(root, Served):
                return _Part(await self._read_versions(root), "")
            served = self._tables.setdefault(key, root)
        return _Part(served, answer.etag)

    async def _read_versions(self, versions: tuple[GroupVersion, ...]) -> Served:
        documents = [(where, await self._document(where)) for where in versions]
        key = hashlib.sha256(b"\0".join(where.path.encode() + (text or b"") for where, text in documents)).digest()
        served = merge(_version(where, text) for where, text in documents)
        return self._tables.setdefault(key, served)

    async def _document(self, where: GroupVersion) -> bytes | None:
        """Nothing if the group's own server is away: it must not hide all other groups."""
        try:
            return (await self._exchange(Request("GET", where.path))).body
        except ApiError as error:
            if error.kind is not Kind.UNAVAILABLE:
                raise
            return None


def _version(where: GroupVersion, document: bytes | None) -> Served:
    if document is None:
        return unread(where)
    with _readable(where.path):
        return read_version(where, document)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except UNDECODABLE as error:
        message = f"GET {path}: the answer is no discovery document ({error}); is this address an API server's?"
        raise GovernorError(Kind.INTERNAL, "kube-discovery", message) from error


def _missing(group: str, kind: str, version: str, *, stale: bool) -> GovernorError:
    name = f"{kind}.{version}.{group}".strip(".") if version else f"{kind}.{group}".strip(".")
    if stale:
        message = f"{name} is not known: the server of the API group {group} does not answer; look at its APIService"
        return GovernorError(Kind.UNAVAILABLE, "kube-group-stale", message)
    message = f"the cluster does not serve {name}; install its CustomResourceDefinition, or name another version"
    return GovernorError(Kind.NOT_FOUND, "kube-kind-unknown", message)
