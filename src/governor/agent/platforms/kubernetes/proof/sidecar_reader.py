"""Reads sidecars over the network: by the address of their pod, or through the API server's pod proxy.

Excluded: which pods there are (``observer``) and what a status proves (``verification``).
"""

import asyncio
import enum
from collections.abc import Iterable
from typing import Final

import aiohttp
import msgspec

from governor.agent.platforms.kubernetes.workloads.observer import PODS
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod
from governor.agent.verification.sidecar_api import Response, SidecarApi, SidecarStatus
from governor.errors import GovernorError
from governor.kube.client import Client, Limits, Request
from governor.kube.errors import ApiError
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.flowcontrol.limiter import Rate

CONCURRENCY: Final = 64
"""Sidecars that are read at once, each with up to two requests at a time."""
PROXY_LIMITS: Final = Limits(
    rate=Rate(per_s=300.0, burst=3 * CONCURRENCY),
    breaker=BreakerPolicy(failures=1_000_000_000, backoff=Backoff(initial_s=1.0, max_s=1.0)),
    attempts=1,
)
"""Limits of the client for the pod proxy. It serves nothing else: a sidecar's error must neither be retried nor open
the circuit to the API server."""

_CONNECT_TIMEOUT_S: Final = 1.0
_TIMEOUT_S: Final = 3.0
_PROXY_TIMEOUT_S: Final = 6.0
_MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_MAX_REMEMBERED: Final = 10_000
_UNHEALTHY: Final = 500


class Route(enum.StrEnum):
    """The way to a sidecar."""

    DIRECT = "direct"
    """By the address of its pod."""
    PROXY = "proxy"
    """Through the API server, which connects to the pod."""
    AUTO = "auto"
    """Direct, but through the API server for pods that cannot be reached otherwise."""


class SidecarReading(msgspec.Struct, frozen=True):
    """The status of a sidecar and the route on which it was read; ``reason`` says why status or counters are None.

    Compare the pod and its ``instance`` again afterwards: its address or name may have gone to another pod meanwhile.
    """

    status: SidecarStatus | None
    route: Route
    reason: str = ""


def open_session() -> aiohttp.ClientSession:
    """Return the session for direct reads; it keeps no connections, which would be two for each sidecar."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())


class SidecarReader:
    """Reads any number of sidecars, a bounded number at once, with at most three requests per sidecar and route.

    ``session`` is from ``open_session``, and ``client`` has ``PROXY_LIMITS``.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        client: Client,
        route: Route = Route.AUTO,
        *,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self._session = session
        self._client = client
        self._route = route
        self._slots = asyncio.Semaphore(concurrency)
        self._proxied: dict[str, None] = {}

    async def read_all(self, pods: Iterable[Pod]) -> dict[str, SidecarReading]:
        """Read the sidecars of some pods; return the readings by the uid of the pod."""
        chosen = {pod.uid: pod for pod in pods}
        readings = await asyncio.gather(*map(self.read, chosen.values()))
        return dict(zip(chosen, readings, strict=True))

    async def read(self, pod: Pod) -> SidecarReading:
        """Read the sidecar of a pod. If it does not respond, or is gone, there is no status."""
        route = self._route_to(pod)
        sidecar = pod.sidecar
        if sidecar is None or not sidecar.public_port:
            return SidecarReading(None, route, "the pod has no sidecar with a public port")
        if not pod.ip:
            return SidecarReading(None, route, "the pod has no address")
        async with self._slots:
            if route is Route.PROXY:
                return await self._read_through_proxy(pod, sidecar)
            return await self._read_directly(pod, sidecar)

    def _route_to(self, pod: Pod) -> Route:
        is_proxied = self._route is Route.PROXY or pod.uid in self._proxied
        return Route.PROXY if is_proxied else Route.DIRECT

    async def _read_directly(self, pod: Pod, sidecar: Container) -> SidecarReading:
        get = _DirectGet(self._session)
        public, metrics = (_url(pod.ip, port) for port in (sidecar.public_port, sidecar.metrics_port))
        status = await SidecarApi(get, public, metrics, _TIMEOUT_S).get_status()
        direct = _reading(pod, sidecar, status, Route.DIRECT, get.failure)
        if self._route is Route.AUTO and get.is_blocked(public, is_serving=sidecar.ready):
            proxied = await self._read_through_proxy(pod, sidecar)
            if proxied.status:
                self._remember(pod)
                return proxied
        return direct

    async def _read_through_proxy(self, pod: Pod, sidecar: Container) -> SidecarReading:
        get = _ProxyGet(self._client)
        public, metrics = (_proxy_path(pod, port) for port in (sidecar.public_port, sidecar.metrics_port))
        status = await SidecarApi(get, public, metrics, _PROXY_TIMEOUT_S).get_status()
        return _reading(pod, sidecar, status, Route.PROXY, get.failure)

    def _remember(self, pod: Pod) -> None:
        """Read the pod through the API server from now on; only so many are remembered, because pods come and go."""
        self._proxied[pod.uid] = None
        if len(self._proxied) > _MAX_REMEMBERED:
            del self._proxied[next(iter(self._proxied))]


def _url(ip: str, port: int) -> str:
    host = f"[{ip}]" if ":" in ip else ip
    return f"http://{host}:{port}" if port else ""


def _proxy_path(pod: Pod, port: int) -> str:
    return PODS.path(pod.namespace, f"{pod.name}:{port}", "proxy") if port else ""


def _reading(pod: Pod, sidecar: Container, status: SidecarStatus | None, route: Route, failure: str) -> SidecarReading:
    if status is None:
        return SidecarReading(None, route, failure or "it does not respond like a sidecar")
    if status.metadata.id != pod.app_id:
        reason = f"the sidecar of another application responds: {status.metadata.id!r} instead of {pod.app_id!r}"
        return SidecarReading(None, route, reason)
    if status.counters is None:
        silent = failure or "its metrics port does not respond"
        return SidecarReading(status, route, silent if sidecar.metrics_port else "its metrics are disabled")
    return SidecarReading(status, route)


class _DirectGet:
    """GETs to one pod; after a port could not be connected to, it is not tried again."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._refused: dict[str, bool] = {}
        """Ports that could not be connected to, and whether the connection was refused."""
        self.failure = ""

    async def __call__(self, url: str) -> Response | None:
        origin = _origin(url)
        if origin in self._refused:
            return None
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                return response.status, await _read_body(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._refused[origin] = isinstance(error, aiohttp.ClientConnectorError) and isinstance(
                error.os_error, ConnectionRefusedError
            )
            self.failure = f"cannot connect to {origin}: {_text(error)}"
        except (OSError, aiohttp.ClientError) as error:
            self.failure = f"the connection to {origin} was lost: {_text(error)}"
        return None

    def is_blocked(self, public: str, *, is_serving: bool) -> bool:
        """Return whether the network seems to block a port.

        A refused connection is no sign of that: nothing listens there, unless Kubernetes itself gets responses from it.
        """
        is_silent = not all(self._refused.values())
        return is_silent or (is_serving and public in self._refused)


def _origin(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise aiohttp.ClientPayloadError(f"more than {_MAX_BODY_BYTES} bytes")
    return bytes(body)


def _text(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    return str(error) or type(error).__name__


class _ProxyGet:
    """GETs to one pod through the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.failure = ""

    async def __call__(self, path: str) -> Response | None:
        try:
            body = await self._client.send(Request("GET", path, timeout_s=_PROXY_TIMEOUT_S))
        except GovernorError as error:
            if isinstance(error, ApiError) and error.status == _UNHEALTHY and not error.from_server:
                return _UNHEALTHY, b""
            self.failure = str(error)
            return None
        return 200 if body else 204, body
