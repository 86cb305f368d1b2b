"""State that all cluster clients of one program share: connections, discovery cache, clock, rng, metrics.

It also defines ``Request`` and ``Response``. Sending one request is ``rest``.
"""

import random
import weakref
from collections.abc import Mapping
from typing import Final, Self

import msgspec

from governor.kube.client.connections import Connections
from governor.kube.client.discovery_documents import ServedResources
from governor.kube.config.access import Impersonation
from governor.process.clock import Clock, SystemClock
from governor.process.telemetry.instruments import Counter, CounterChild, Histogram, HistogramChild, Registry

JSON: Final = "application/json"
METADATA: Final = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""``accept`` of a get or watch that needs only the metadata; a server that cannot reduce objects sends whole ones."""
METADATA_LIST: Final = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
"""The same for a list."""
TIMEOUT_S: Final = 35.0
"""Longer than the 30 s that an admission webhook may take at most, so that the error that names it arrives."""
NOT_MODIFIED: Final = 304

_NO_RESPONSE: Final = "<error>"
_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class Request(msgspec.Struct, frozen=True):
    """One request; ``retryable`` is False if sending it twice differs from sending it once."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes = b""
    content_type: str = JSON
    retryable: bool = True
    timeout_s: float = TIMEOUT_S
    """For the whole response including all attempts; for a stream, until the response headers."""
    accept: str = JSON
    etag: str = ""
    """ETag of a cached response; if it is still current, the response is 304 without a body."""
    impersonation: Impersonation | None = None
    """The user that the request impersonates; set by ``Client.impersonating``."""

    def __repr__(self) -> str:
        """Omit the body, which may contain a Secret."""
        user = f" as {self.impersonation.user}" if self.impersonation else ""
        return f"{self.method} {self.path}{user}"


class Response(msgspec.Struct, frozen=True):
    """A complete response that is not an error."""

    status: int
    body: bytes
    etag: str = ""

    def __repr__(self) -> str:
        """Omit the body, which may contain a Secret."""
        return f"Response({self.status}, {len(self.body)} bytes)"


class RestMetrics:
    """Request metrics under client-go's names. No label names the cluster: there may be ten thousand."""

    def __init__(self, registry: Registry) -> None:
        self._requests = Counter(
            "rest_client_requests_total",
            "Requests to API servers, by status code and method.",
            ["code", "method"],
            registry=registry,
        )
        self._duration = Histogram(
            "rest_client_request_duration_seconds",
            "Duration of requests to API servers in seconds; for a watch, until it begins.",
            ["verb"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        # Looking up a labelled counter takes longer than incrementing it.
        self._children: dict[tuple[int, str], tuple[CounterChild, HistogramChild]] = {}

    def record(self, method: str, status: int, duration_s: float) -> None:
        """Count one attempt; status 0 means that there was no response."""
        children = self._children.get((status, method))
        if children is None:
            code = str(status) if status else _NO_RESPONSE
            children = (self._requests.labels(code, method), self._duration.labels(method))
            self._children[status, method] = children
        children[0].inc()
        children[1].observe(duration_s)


class Transport:
    """The shared state; created once per program and passed to every client."""

    def __init__(
        self,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()  # noqa: S311 - jitter
        self.metrics = RestMetrics(registry) if registry else None
        self.connections = Connections()
        self.discovery_cache: weakref.WeakValueDictionary[bytes, ServedResources] = weakref.WeakValueDictionary()

    async def close(self) -> None:
        """Close all connections."""
        await self.connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
