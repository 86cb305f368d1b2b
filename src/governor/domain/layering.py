"""Folds profiles into the configuration of one runtime and records the origin of every field.

Layers are ordered: all runtimes, groups, one runtime; within each by priority. Maps merge deeply, lists of named items
merge by name, other lists and scalars replace; null removes a key and ``{name, $remove: true}`` a list item. Two layers
of the same rank that set one field differently conflict, so their order never matters.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from governor.domain.documents import Profile, ResourceRef, resource_ref
from governor.values.paths import Item, Path
from governor.values.trees import Manifest, Tree, named_items, same

REMOVE: Final = "$remove"

_ABSENT: Final[Any] = object()
"""Marks a field that does not exist."""


class Layer(msgspec.Struct, frozen=True):
    """One profile of a fold; ``apply`` is its partial apply policy as written."""

    profile: Profile
    apply: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the profile's name."""
        return self.profile.metadata.name

    @property
    def rank(self) -> tuple[int, int]:
        """Return specificity and priority; layers of equal rank must not conflict."""
        return self.profile.spec.selector.specificity, self.profile.spec.priority


class Origin(msgspec.Struct, frozen=True):
    """The layer that set a field last."""

    rank: tuple[int, int]
    profile: str


class Conflict(msgspec.Struct, frozen=True):
    """Two profiles of one rank that set one field differently; ``resource`` is None for the apply policy."""

    resource: ResourceRef | None
    path: Path
    profiles: tuple[str, str]
    priority: int


class Folded(msgspec.Struct, frozen=True):
    """The result of a fold. ``origins`` has one entry for each field of each resource that a layer set as a whole."""

    resources: dict[ResourceRef, Manifest]
    apply: dict[str, Any]
    origins: dict[ResourceRef, dict[Path, Origin]]
    apply_origins: dict[Path, Origin]
    conflicts: tuple[Conflict, ...]

    def origin(self, resource: ResourceRef, path: Path) -> str:
        """Return the profile that set a field: its own entry, or that of the nearest field above or below."""
        origins = self.origins[resource]
        for length in range(len(path), -1, -1):
            nearest = [known for known in origins if known[:length] == path[:length]]
            if nearest:
                return origins[min(nearest, key=len)].profile
        raise KeyError(resource)


def fold(layers: Iterable[Layer], default_namespace: str) -> Folded:
    """Merge layers in the order of their ranks."""
    resources: defaultdict[ResourceRef, _Merged] = defaultdict(_Merged)
    apply = _Merged({})
    conflicts: list[Conflict] = []
    ordered = sorted(layers, key=lambda layer: (layer.rank, layer.name))
    for _, group in itertools.groupby(ordered, key=lambda layer: layer.rank):
        peers = [_contribution(layer, default_namespace) for layer in group]
        for one, other in itertools.combinations(peers, 2):
            conflicts.extend(_conflicts(one, other))
        for peer in peers:
            for ref in peer.removals:
                resources[ref].merge(None, peer.origin)
        for peer in peers:
            for ref, manifest in peer.resources.items():
                resources[ref].merge(manifest, peer.origin)
            apply.merge(peer.apply, peer.origin)
    present = {ref: merged for ref, merged in sorted(resources.items()) if merged.tree is not _ABSENT}
    return Folded(
        {ref: merged.tree for ref, merged in present.items()},
        apply.tree,
        {ref: merged.origins for ref, merged in present.items()},
        apply.origins,
        tuple(conflicts),
    )


class _Contribution(msgspec.Struct, frozen=True):
    """The contents of one layer by resource. Removals apply only to lower ranks."""

    origin: Origin
    removals: frozenset[ResourceRef]
    resources: dict[ResourceRef, Manifest]
    apply: dict[str, Any]


def _contribution(layer: Layer, default_namespace: str) -> _Contribution:
    spec = layer.profile.spec
    removals = (ResourceRef(each.kind, each.namespace or default_namespace, each.name) for each in spec.removals)
    manifests = ((resource_ref(manifest, default_namespace), manifest) for manifest in spec.resources)
    resources = {
        ref: {**manifest, "metadata": {**manifest["metadata"], "namespace": ref.namespace}}
        for ref, manifest in manifests
    }
    return _Contribution(Origin(layer.rank, layer.name), frozenset(removals), resources, layer.apply)


# -- conflicts between layers of one rank --------------------------------------------------------------------------


def _conflicts(one: _Contribution, other: _Contribution) -> Iterator[Conflict]:
    """Yield the conflicts of two layers of one rank, regardless of the layers below and above."""
    profiles, priority = (one.origin.profile, other.origin.profile), one.origin.rank[1]
    for ref in sorted((one.removals | one.resources.keys()) & (other.removals | other.resources.keys())):
        if _presence(one, ref) != _presence(other, ref):
            yield Conflict(ref, (), profiles, priority)
        elif ref in one.resources:
            for path in _differing(one.resources[ref], other.resources[ref]):
                yield Conflict(ref, path, profiles, priority)
    for path in _differing(one.apply, other.apply):
        yield Conflict(None, path, profiles, priority)


def _presence(layer: _Contribution, ref: ResourceRef) -> tuple[bool, bool]:
    return ref in layer.removals, ref in layer.resources


def _differing(one: Tree, other: Tree, path: Path = ()) -> Iterator[Path]:
    ones, others = _children(one), _children(other)
    if ones is None or others is None or isinstance(one, dict) != isinstance(other, dict):
        if not same(one, other):
            yield path
        return
    for step in ones:
        if step in others:
            yield from _differing(ones[step], others[step], (*path, step))


# -- merging a higher rank over a lower one ------------------------------------------------------------------------


class _Merged(msgspec.Struct):
    """A resource, or the apply policy, while layers are merged into it."""

    tree: Tree = _ABSENT
    origins: dict[Path, Origin] = {}

    def merge(self, over: Tree, origin: Origin) -> None:
        self.tree = self._merge(self.tree, over, (), origin)

    def _merge(self, base: Tree, over: Tree, path: Path, origin: Origin) -> Tree:
        children = _children(over)
        if children is None:
            self._set_origin(base, path, origin)
            return _ABSENT if over is None else over
        merged = _mergeable(base, over)
        if merged is None:
            self._set_origin(base, path, origin)
            merged = {}
        for step, value in children.items():
            merged[step] = self._merge(merged.get(step, _ABSENT), value, (*path, step), origin)
        kept = {step: value for step, value in merged.items() if value is not _ABSENT}
        self._set_container_origin(path, origin, empty=not kept)
        return kept if isinstance(over, dict) else list(kept.values())

    def _set_origin(self, base: Tree, path: Path, origin: Origin) -> None:
        """Record the layer that sets this field as a whole, and forget the origins below it."""
        if isinstance(base, (dict, list, tuple)):
            for known in [known for known in self.origins if known[: len(path)] == path]:
                del self.origins[known]
        self.origins[path] = origin

    def _set_container_origin(self, path: Path, origin: Origin, *, empty: bool) -> None:
        """Record the origin of a map or list only while it is empty; otherwise its fields have origins."""
        if empty:
            self.origins[path] = origin
        else:
            self.origins.pop(path, None)


def _mergeable(base: Tree, over: Tree) -> dict[Any, Tree] | None:
    """Return the children of ``base`` that ``over`` merges into, or None if it replaces ``base``."""
    return _children(base) if isinstance(base, dict) == isinstance(over, dict) else None


def _children(tree: Tree) -> dict[Any, Tree] | None:
    """Return the children that merge one by one (None for a removed one), or None if the tree counts as a whole."""
    if isinstance(tree, dict):
        return dict(tree)
    by_name = named_items(tree) if isinstance(tree, (list, tuple)) else None
    if by_name is None:
        return None
    return {Item(name): None if item.get(REMOVE) is True else item for name, item in by_name.items()}
