"""Parses discovery documents, aggregated and unaggregated, into the resources that an API server serves. No I/O.

Fetching and caching is ``discovery``.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from governor.kube.objects import ApiResource


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


class GroupVersion(msgspec.Struct, frozen=True):
    """A group and version, which unaggregated discovery describes in one document."""

    group: str
    version: str

    @property
    def path(self) -> str:
        """The path of that document."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


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


class _UnaggregatedVersion(msgspec.Struct, frozen=True):
    version: str


class _UnaggregatedGroup(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    versions: tuple[_UnaggregatedVersion, ...] = ()
    preferred_version: _UnaggregatedVersion | None = None


class _Root(msgspec.Struct, frozen=True):
    """The response of /api or /apis in either form: at most one of the lists is set."""

    kind: str
    items: tuple[_Group, ...] = ()
    groups: tuple[_UnaggregatedGroup, ...] = ()
    versions: tuple[str, ...] = ()


class _UnaggregatedResource(msgspec.Struct, frozen=True):
    name: str
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


class _UnaggregatedResources(msgspec.Struct, frozen=True):
    resources: tuple[_UnaggregatedResource, ...] = ()


_decode_root = msgspec.json.Decoder(_Root).decode
_decode_resources = msgspec.json.Decoder(_UnaggregatedResources).decode


def parse_root(body: bytes) -> "ServedResources | tuple[GroupVersion, ...]":
    """Return the served resources from aggregated discovery, or the versions to fetch, preferred ones first.

    Raise ``msgspec.MsgspecError`` if the body is no discovery document.
    """
    root = _decode_root(body)
    if root.kind == "APIGroupDiscoveryList":
        return _aggregated(root.items)
    if root.kind == "APIVersions":
        return tuple(GroupVersion("", version) for version in root.versions)
    if root.kind == "APIGroupList":
        return tuple(each for group in root.groups for each in _versions(group))
    raise msgspec.ValidationError(f"{root.kind!r} is not a kind of discovery document")


def parse_resource_list(version: GroupVersion, body: bytes) -> ServedResources:
    """Return the resources of one group version from unaggregated discovery."""
    resources = _decode_resources(body).resources
    subresources: dict[str, set[str]] = {}
    for each in resources:
        plural, slash, subresource = each.name.partition("/")
        if slash:
            subresources.setdefault(plural, set()).add(subresource)
    return _index(
        ApiResource(
            version.group,
            version.version,
            each.kind,
            each.name,
            each.namespaced,
            frozenset(each.verbs),
            frozenset(subresources.get(each.name, ())),
        )
        for each in resources
        if "/" not in each.name
    )


def merge(parts: Iterable[ServedResources]) -> ServedResources:
    """Return all parts as one; versions keep the order of the parts."""
    parts = tuple(parts)
    resources = (each for part in parts for versions in part.kinds.values() for each in versions)
    return _index(resources, frozenset[str]().union(*(part.stale_groups for part in parts)))


def unavailable(version: GroupVersion) -> ServedResources:
    """Return the result for a group version whose document could not be fetched."""
    return ServedResources({}, frozenset({version.group}))


def _versions(group: _UnaggregatedGroup) -> list[GroupVersion]:
    names = [each.version for each in group.versions]
    preferred = group.preferred_version.version if group.preferred_version else ""
    return [GroupVersion(group.name, version) for version in sorted(names, key=lambda name: name != preferred)]


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


def _index(resources: Iterable[ApiResource], stale: frozenset[str] = frozenset()) -> ServedResources:
    kinds: dict[tuple[str, str], tuple[ApiResource, ...]] = {}
    for each in resources:
        key = (each.group, each.kind)
        kinds[key] = (*kinds.get(key, ()), each)
    return ServedResources(kinds, stale)
