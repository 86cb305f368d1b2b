"""Client of a Dapr sidecar's status: health, metadata and counters over HTTP, or over what a platform puts between.

Excluded: judging the status (``verdicts``) and running sidecars (the platforms).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

import aiohttp
import msgspec

TIMEOUT_S: Final = 2.0
_COUNTER: Final = re.compile(
    r"^dapr_runtime_component_(?P<what>init_total|init_fail_total)\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Named(msgspec.Struct, frozen=True):
    """A resource that a sidecar lists by name only."""

    name: str


class LoadedComponent(msgspec.Struct, frozen=True):
    """A component that a sidecar has initialised."""

    name: str
    type: str
    version: str = ""


class Rule(msgspec.Struct, frozen=True):
    """A route for matching messages; one without ``match`` is the default."""

    path: str = ""
    match: str = ""


class LoadedSubscription(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription as a sidecar lists it, without its resource name."""

    pubsub_name: str = msgspec.field(name="pubsubname")
    topic: str
    rules: tuple[Rule, ...] = ()
    dead_letter_topic: str = ""
    metadata: dict[str, str] = {}
    type: str = "DECLARATIVE"


class HostedActors(msgspec.Struct, frozen=True):
    """The actors of one type that the application of a sidecar hosts."""

    type: str
    count: int = 0


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The part of ``/v1.0/metadata`` that shows which resources are loaded."""

    id: str
    runtime_version: str = ""
    enabled_features: tuple[str, ...] = ()
    components: tuple[LoadedComponent, ...] = ()
    subscriptions: tuple[LoadedSubscription, ...] = ()
    http_endpoints: tuple[Named, ...] = ()
    mcp_servers: tuple[Named, ...] = ()
    workflow_access_policies: tuple[Named, ...] = ()
    resiliencies: tuple[Named, ...] = ()
    actors: tuple[HostedActors, ...] = ()


Response: TypeAlias = tuple[int, bytes]
"""The status code and the body."""
Get: TypeAlias = Callable[[str], Awaitable[Response | None]]
"""Sends a GET; None if there is no response, which is expected while a sidecar starts, stops or restarts."""
Counts: TypeAlias = Mapping[str, int]


class Counters(msgspec.Struct, frozen=True):
    """Component initialisations by type, and failed ones by component name, since the process started."""

    initialised: Counts
    failed: Counts


class SidecarStatus(msgspec.Struct, frozen=True):
    """A sidecar's responses at one moment; ``counters`` is None if its metrics are disabled."""

    healthy: bool
    metadata: Metadata
    counters: Counters | None


def get_over_http(session: aiohttp.ClientSession) -> Get:
    """Return the transport that connects to the sidecar itself."""

    async def get(url: str) -> Response | None:
        try:
            async with session.get(url, allow_redirects=False) as response:
                return response.status, await response.read()
        except (OSError, aiohttp.ClientError):
            return None

    return get


class SidecarApi:
    """Client of one sidecar, on its public port, which needs no token, and its metrics port, if that is not empty."""

    def __init__(self, get: Get, public: str, metrics: str, timeout_s: float = TIMEOUT_S) -> None:
        self._get = get
        self._public = public
        self._metrics = metrics
        self._timeout_s = timeout_s

    async def get_status(self) -> SidecarStatus | None:
        """Return the sidecar's status, or None if it does not respond like a sidecar."""
        try:
            async with asyncio.timeout(self._timeout_s):
                # Metrics before metadata: daprd counts a component before it lists it, so what is counted is listed.
                healthy, (metrics, metadata) = await asyncio.gather(self._health(), self._metrics_then_metadata())
            if healthy is None or metadata is None:
                return None
            counters = read_counters(metrics[1].decode()) if metrics else None
            return SidecarStatus(healthy[0] == 204, read_metadata(metadata[1]), counters)
        except (TimeoutError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    async def _health(self) -> Response | None:
        return await self._expect(f"{self._public}/v1.0/healthz/outbound", {204, 500})

    async def _metrics_then_metadata(self) -> tuple[Response | None, Response | None]:
        metrics = await self._expect(f"{self._metrics}/metrics", {200}) if self._metrics else None
        return metrics, await self._expect(f"{self._public}/v1.0/metadata", {200})

    async def _expect(self, url: str, expected: set[int]) -> Response | None:
        """Return an expected response; any other is no evidence."""
        response = await self._get(url)
        return response if response and response[0] in expected else None


def read_metadata(body: bytes) -> Metadata:
    """Parse the response of ``/v1.0/metadata``."""
    return msgspec.json.decode(body, type=Metadata)


def read_counters(text: str) -> Counters:
    """Parse the two counters from a sidecar's Prometheus text."""
    initialised: dict[str, int] = {}
    failed: dict[str, int] = {}
    for match in _COUNTER.finditer(text):
        labels = dict(_LABEL.findall(match["labels"]))
        if match["what"] == "init_total":
            _count(initialised, labels.get("component", ""), match["value"])
        else:
            # Here too the label `component` is the type; the name is in `componentName`.
            _count(failed, labels.get("componentName", ""), match["value"])
    return Counters(initialised, failed)


def _count(counts: dict[str, int], name: str, value: str) -> None:
    counts[name] = counts.get(name, 0) + int(float(value))
