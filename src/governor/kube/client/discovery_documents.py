"""Parses discovery documents into the resources that an API server serves. No I/O.

Fetching and caching is ``discovery``.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.objects import ApiResource

OLDEST_SERVER: Final = "1.30"
"""The first version of Kubernetes whose aggregated discovery is stable, and the oldest supported one."""
_UNAGGREGATED: Final = frozenset({"APIVersions", "APIGroupList"})


class ServedResources(msgspec.Struct, frozen=True, weakref=True):
    """The kinds of one API server; clusters with equal discovery documents share one instance."""

    kinds: Mapping[tuple[str, str], tuple[ApiResource, ...]]
    """By group and kind: all versions, the preferred one first."""
    stale_groups: frozenset[str] = frozenset()
    """Groups whose aggregated server did not respond; their kinds are missing or outdated."""

    def find(self, group: str, kind: str, version: str = "") -> ApiResource | None:
        """Return one kind in one version or in the preferred one; None if it is not served."""
        versions = self.kinds.get((group, kind), ())
        return next((each for each in versions if not version or each.version == version), None)

    def preferred(self) -> tuple[ApiResource, ...]:
        """Return every kind once, in its preferred version."""
        return tuple(versions[0] for versions in self.kinds.values())


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Subresource(msgspec.Struct, frozen=True):
    subresource: str


class _Resource(msgspec.Struct, frozen=True, rename="camel"):
    resource: str
    response_kind: _Kind | None = None
    scope: str = ""
    verbs: tuple[str, ...] = ()
    subresources: tuple[_Subresource, ...] = ()


class _Version(msgspec.Struct, frozen=True):
    version: str
    resources: tuple[_Resource, ...] = ()
    freshness: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""


class _Group(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    versions: tuple[_Version, ...] = ()


class _Root(msgspec.Struct, frozen=True):
    kind: str
    items: tuple[_Group, ...] = ()


_decode_root = msgspec.json.Decoder(_Root).decode


def parse_root(body: bytes) -> ServedResources:
    """Return the resources in the response of /api or /apis.

    Raise ``msgspec.MsgspecError`` if the body is not a discovery document, UNIMPLEMENTED if it is not aggregated.
    """
    root = _decode_root(body)
    if root.kind in _UNAGGREGATED:
        message = (
            f"the server has no aggregated discovery (apidiscovery.k8s.io/v2): it is older than Kubernetes "
            f"{OLDEST_SERVER}, the oldest supported version, or a proxy in front of it drops the Accept header"
        )
        raise GovernorError(Kind.UNIMPLEMENTED, "kube-server-version", message)
    if root.kind != "APIGroupDiscoveryList":
        raise msgspec.ValidationError(f"{root.kind!r} is not a kind of discovery document")
    return _aggregated(root.items)


def _aggregated(groups: tuple[_Group, ...]) -> ServedResources:
    stale = frozenset(
        group.metadata.name for group in groups if any(version.freshness == "Stale" for version in group.versions)
    )
    return _index((each for group in groups for each in _resources(group)), stale)


def _resources(group: _Group) -> Iterator[ApiResource]:
    for version in group.versions:
        for each in version.resources:
            # An entry without a kind only lists subresources.
            if each.response_kind is not None and each.response_kind.kind:
                yield ApiResource(
                    group.metadata.name,
                    version.version,
                    each.response_kind.kind,
                    each.resource,
                    each.scope == "Namespaced",
                    frozenset(each.verbs),
                    frozenset(child.subresource for child in each.subresources),
                )


def _index(resources: Iterable[ApiResource], stale: frozenset[str]) -> ServedResources:
    kinds: dict[tuple[str, str], tuple[ApiResource, ...]] = {}
    for each in resources:
        key = (each.group, each.kind)
        kinds[key] = (*kinds.get(key, ()), each)
    return ServedResources(kinds, stale)
