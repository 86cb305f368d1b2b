"""What an API server serves, from its discovery documents: pure reading, of the aggregated form and of the older one.

Fetching and keeping the documents is discovery's.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from governor.kube.objects import ApiResource


class Served(msgspec.Struct, frozen=True, weakref=True):
    """The kinds of one API server; clusters that answer the same share one."""

    kinds: Mapping[tuple[str, str], tuple[ApiResource, ...]]
    """By group and kind, each in all its versions, the preferred one first."""
    stale: frozenset[str] = frozenset()
    """Groups whose own server did not answer: what they serve is not, or not surely, known."""

    def find(self, group: str, kind: str, version: str = "") -> ApiResource | None:
        """One kind in one version, or in the preferred one."""
        versions = self.kinds.get((group, kind), ())
        return next((each for each in versions if not version or each.version == version), None)

    def preferred(self) -> tuple[ApiResource, ...]:
        """Every kind once."""
        return tuple(versions[0] for versions in self.kinds.values())


class GroupVersion(msgspec.Struct, frozen=True):
    """One version of one group that the older discovery describes in a document of its own."""

    group: str
    version: str

    @property
    def path(self) -> str:
        """Where that document is."""
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


class _LegacyVersion(msgspec.Struct, frozen=True):
    version: str


class _LegacyGroup(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    versions: tuple[_LegacyVersion, ...] = ()
    preferred_version: _LegacyVersion | None = None


class _Root(msgspec.Struct, frozen=True):
    """The answer of /api or /apis in whatever form: at most one of the lists is there."""

    kind: str
    items: tuple[_Group, ...] = ()
    groups: tuple[_LegacyGroup, ...] = ()
    versions: tuple[str, ...] = ()


class _LegacyResource(msgspec.Struct, frozen=True):
    name: str
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


class _LegacyResources(msgspec.Struct, frozen=True):
    resources: tuple[_LegacyResource, ...] = ()


_decode_root = msgspec.json.Decoder(_Root).decode
_decode_resources = msgspec.json.Decoder(_LegacyResources).decode


def read_root(body: bytes) -> "Served | tuple[GroupVersion, ...]":
    """What /api or /apis answered: everything, or from an older server only where to ask on, preferred versions first.

    A ``msgspec.MsgspecError`` if it is neither.
    """
    root = _decode_root(body)
    if root.kind == "APIGroupDiscoveryList":
        return _served(root.items)
    if root.kind == "APIVersions":
        return tuple(GroupVersion("", version) for version in root.versions)
    if root.kind == "APIGroupList":
        return tuple(each for group in root.groups for each in _versions(group))
    raise msgspec.ValidationError(f"the kind is {root.kind!r}, not that of a discovery document")


def read_version(where: GroupVersion, body: bytes) -> Served:
    """What one version of one group serves, in the older form."""
    resources = _decode_resources(body).resources
    below: dict[str, set[str]] = {}
    for each in resources:
        plural, slash, subresource = each.name.partition("/")
        if slash:
            below.setdefault(plural, set()).add(subresource)
    return _index(
        ApiResource(
            where.group,
            where.version,
            each.kind,
            each.name,
            each.namespaced,
            frozenset(each.verbs),
            frozenset(below.get(each.name, ())),
        )
        for each in resources
        if "/" not in each.name
    )


def merge(parts: Iterable[Served]) -> Served:
    """All parts as one; of versions the earlier part's first."""
    parts = tuple(parts)
    resources = (each for part in parts for versions in part.kinds.values() for each in versions)
    return _index(resources, frozenset[str]().union(*(part.stale for part in parts)))


def unread(where: GroupVersion) -> Served:
    """A version whose document could not be had."""
    return Served({}, frozenset({where.group}))


def _versions(group: _LegacyGroup) -> list[GroupVersion]:
    names = [each.version for each in group.versions]
    preferred = group.preferred_version.version if group.preferred_version else ""
    return [GroupVersion(group.name, version) for version in sorted(names, key=lambda name: name != preferred)]


def _served(groups: tuple[_Group, ...]) -> Served:
    stale = frozenset(
        group.metadata.name for group in groups if any(version.freshness == "Stale" for version in group.versions)
    )
    return _index((each for group in groups for each in _resources(group)), stale)


def _resources(group: _Group) -> Iterator[ApiResource]:
    for version in group.versions:
        for each in version.resources:
            # Without a kind of its own it only carries subresources.
            if each.response_kind is not None and each.response_kind.kind:
                yield ApiResource(
                    group.metadata.name,
                    version.version,
                    each.response_kind.kind,
                    each.resource,
                    each.scope == "Namespaced",
                    frozenset(each.verbs),
                    frozenset(below.subresource for below in each.subresources),
                )


def _index(resources: Iterable[ApiResource], stale: frozenset[str] = frozenset()) -> Served:
    kinds: dict[tuple[str, str], tuple[ApiResource, ...]] = {}
    for each in resources:
        key = (each.group, each.kind)
        kinds[key] = (*kinds.get(key, ()), each)
    return Served(kinds, stale)
