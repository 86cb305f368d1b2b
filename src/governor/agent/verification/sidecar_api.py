"""Client of a Dapr sidecar's status: health, metadata and counters over HTTP.

Excluded: judging the status (``verdicts``) and running sidecars (the platforms).
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import aiohttp
import msgspec

_TIMEOUT_S: Final = 2.0
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


class SidecarApi:
    """Client of one sidecar, on its public port, which needs no token, and its metrics port."""

    def __init__(self, session: aiohttp.ClientSession, public: str, metrics: str) -> None:
        self._session = session
        self._public = public
        self._metrics = metrics

    async def get_status(self) -> SidecarStatus | None:
        """Return the sidecar's status, or None if it does not respond like a sidecar."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                # Metrics first: daprd counts a component before it lists it, so what is counted here is listed below.
                metrics = await self._metrics_text()
                healthy = await self._get(f"{self._public}/v1.0/healthz/outbound", {204, 500})
                metadata = await self._get(f"{self._public}/v1.0/metadata", {200})
            if healthy is None or metadata is None:
                return None
            counters = read_counters(metrics[1].decode()) if metrics else None
            return SidecarStatus(healthy[0] == 204, read_metadata(metadata[1]), counters)
        except (OSError, TimeoutError, aiohttp.ClientError, msgspec.MsgspecError, UnicodeDecodeError):
            # Expected while a sidecar starts, stops or restarts; a missing response is not evidence.
            return None

    async def _metrics_text(self) -> tuple[int, bytes] | None:
        if not self._metrics:
            return None
        try:
            return await self._get(f"{self._metrics}/metrics", {200})
        except (OSError, aiohttp.ClientError):
            return None

    async def _get(self, url: str, expected: set[int]) -> tuple[int, bytes] | None:
        async with self._session.get(url, allow_redirects=False) as response:
            body = await response.read()
            return (response.status, body) if response.status in expected else None


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
