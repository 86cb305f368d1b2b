"""What a rendering depends on, what it results in, and the port of renderers."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from governor.kube.objects import Object
from governor.values.secret import Secret


class Layer(msgspec.Struct, frozen=True):
    """One layer of values, as YAML."""

    text: Secret
    is_sensitive: bool = False
    """Whether its values must not appear in messages, nor in the cache."""


class Capabilities(msgspec.Struct, frozen=True):
    """What a chart can ask of a cluster."""

    kube_version: str = ""
    """Version of Kubernetes, such as v1.36.3; if empty, the one that Helm assumes."""
    api_versions: tuple[str, ...] | None = None
    """API versions, and kinds in the form ``apps/v1/Deployment``; if None, those that Helm assumes."""


class LookupCall(msgspec.Struct, frozen=True, rename="camel"):
    """One call of the template function ``lookup``; without a name it asks for a list."""

    api_version: str
    kind: str
    namespace: str
    name: str


Lookup: TypeAlias = Callable[[LookupCall], Awaitable[Object | None]]
"""Returns an object of the target cluster, a list object, or None if there is none."""


class Request(msgspec.Struct, frozen=True):
    """Everything that a rendering depends on."""

    chart: Path
    """A verified chart: a directory or an archive."""
    chart_digest: str
    release_name: str
    namespace: str
    values: tuple[Layer, ...] = ()
    """Layers of values; later ones override earlier ones."""
    capabilities: Capabilities = Capabilities()
    is_upgrade: bool = False
    recording: Secret | None = None
    """The recording of an earlier rendering: what was generated then is generated again."""
    lookup: Lookup | None = None
    """Answers ``lookup``; if None, it finds nothing, as with ``helm template``."""


class Reads(msgspec.Struct, frozen=True, rename="camel"):
    """The capabilities that a chart has read."""

    kube_version: bool = True
    all_api_versions: bool = msgspec.field(default=True, name="allApiVersions")
    api_versions: tuple[str, ...] = msgspec.field(default=(), name="apiVersions")

    def of(self, capabilities: Capabilities) -> tuple[object, ...]:
        """Return the part of the capabilities that was read. Equal parts render equally."""
        known = capabilities.api_versions
        return (
            capabilities.kube_version if self.kube_version else None,
            known if self.all_api_versions else None,
            tuple(name for name in self.api_versions if known is None or name in known),
            known is None,
        )


class Document(msgspec.Struct, frozen=True):
    """One object, and the file of the chart that it comes from."""

    source: str
    object: Any
    """A mapping with apiVersion, kind and name, once ``checked``."""


class Hook(Document, frozen=True, rename="camel"):
    """A hook of Helm: an object that is applied at certain events, not with the others."""

    events: tuple[str, ...]
    weight: int
    delete_policies: tuple[str, ...]


class UnknownHook(msgspec.Struct, frozen=True):
    """A hook for an event that Helm does not know. Helm ignores it; a module with one is refused."""

    events: str
    source: str = ""
    kind: str = ""
    name: str = ""

    def __str__(self) -> str:
        place = f" of {self.kind} {self.name} in {self.source}" if self.source else ""
        return f"{self.events}{place}"


class Rendered(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a rendering. It may contain secrets: do not log it."""

    crds: tuple[Document, ...]
    """Definitions from the directory ``crds`` of the chart and its dependencies."""
    objects: tuple[Document, ...]
    """All other objects but the hooks, in the order in which Helm installs them."""
    hooks: tuple[Hook, ...]
    unknown_hooks: tuple[UnknownHook, ...] = ()
    reads: Reads = Reads()
    lookups: tuple[LookupCall, ...] = ()
    recording: Secret | None = None
    """What was generated; pass it to the next rendering. It contains secrets."""

    def __repr__(self) -> str:
        return f"Rendered({len(self.crds)} CRDs, {len(self.objects)} objects, {len(self.hooks)} hooks)"


class Renderer(Protocol):
    """Renders charts."""

    async def render(self, request: Request) -> Rendered:
        """Render a chart; raise an INVALID error if the chart or its values are wrong."""
