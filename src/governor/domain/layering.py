"""Folding profiles into one configuration for one runtime, and knowing the origin of every field.

Layers lie in the order everything, groups, the one runtime; inside each by priority. Maps merge deeply, lists of named
items by name, other lists and scalars replace; null removes a key and ``{name, $remove: true}`` a list item. Two layers
of the same rank that decide one place differently are a conflict, so their order never matters.
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

_GONE: Final[Any] = object()
"""Stands for a place where nothing is."""


class Layer(msgspec.Struct, frozen=True):
    """One profile as the fold sees it; ``apply`` is its partial apply policy as written."""

    profile: Profile
    apply: dict[str, Any]

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.profile.metadata.name

    @property
    def rank(self) -> tuple[int, int]:
        """Layers of equal rank must agree."""
        return self.profile.spec.selector.specificity, self.profile.spec.priority


class Origin(msgspec.Struct, frozen=True):
    """Which layer decided a place last."""

    rank: tuple[int, int]
    profile: str


class Conflict(msgspec.Struct, frozen=True):
    """Two profiles of one rank decide one place differently; ``resource`` is None for the apply policy."""

    resource: ResourceRef | None
    path: Path
    profiles: tuple[str, str]
    priority: int


class Folded(msgspec.Struct, frozen=True):
    """The outcome of a fold. ``origins`` has one entry per decided place of each resource."""

    resources: dict[ResourceRef, Manifest]
    apply: dict[str, Any]
    origins: dict[ResourceRef, dict[Path, Origin]]
    apply_origins: dict[Path, Origin]
    conflicts: tuple[Conflict, ...]

    def origin(self, resource: ResourceRef, path: Path) -> str:
        """The profile that decided a place: its own entry, or else that of the nearest place above or below."""
        decided = self.origins[resource]
        for length in range(len(path), -1, -1):
            near = [place for place in decided if place[:length] == path[:length]]
            if near:
                return decided[min(near, key=len)].profile
        raise KeyError(resource)


def fold(layers: Iterable[Layer], default_namespace: str) -> Folded:
    """Lay the layers over each other."""
    resources: defaultdict[ResourceRef, _Place] = defaultdict(_Place)
    apply = _Place({})
    conflicts: list[Conflict] = []
    ordered = sorted(layers, key=lambda layer: (layer.rank, layer.name))
    for _, group in itertools.groupby(ordered, key=lambda layer: layer.rank):
        peers = [_saying(layer, default_namespace) for layer in group]
        for one, other in itertools.combinations(peers, 2):
            conflicts.extend(_between(one, other))
        for peer in peers:
            for ref in peer.removals:
                resources[ref].lay(None, peer.origin)
        for peer in peers:
            for ref, manifest in peer.resources.items():
                resources[ref].lay(manifest, peer.origin)
            apply.lay(peer.apply, peer.origin)
    there = {ref: place for ref, place in sorted(resources.items()) if place.tree is not _GONE}
    return Folded(
        {ref: place.tree for ref, place in there.items()},
        apply.tree,
        {ref: place.origins for ref, place in there.items()},
        apply.origins,
        tuple(conflicts),
    )


class _Saying(msgspec.Struct, frozen=True):
    """What one layer says about one runtime, by resource. Removals mean only what lower ranks say."""

    origin: Origin
    removals: frozenset[ResourceRef]
    resources: dict[ResourceRef, Manifest]
    apply: dict[str, Any]


def _saying(layer: Layer, default_namespace: str) -> _Saying:
    spec = layer.profile.spec
    removals = (ResourceRef(each.kind, each.namespace or default_namespace, each.name) for each in spec.removals)
    manifests = ((resource_ref(manifest, default_namespace), manifest) for manifest in spec.resources)
    placed = {
        ref: {**manifest, "metadata": {**manifest["metadata"], "namespace": ref.namespace}}
        for ref, manifest in manifests
    }
    return _Saying(Origin(layer.rank, layer.name), frozenset(removals), placed, layer.apply)


# -- layers of one rank must agree ---------------------------------------------------------------------------------


def _between(one: _Saying, other: _Saying) -> Iterator[Conflict]:
    """Where two layers of one rank disagree; what lies below or above them does not matter."""
    profiles, priority = (one.origin.profile, other.origin.profile), one.origin.rank[1]
    for ref in sorted((one.removals | one.resources.keys()) & (other.removals | other.resources.keys())):
        if _existence(one, ref) != _existence(other, ref):
            yield Conflict(ref, (), profiles, priority)
        elif ref in one.resources:
            for path in _differing(one.resources[ref], other.resources[ref]):
                yield Conflict(ref, path, profiles, priority)
    for path in _differing(one.apply, other.apply):
        yield Conflict(None, path, profiles, priority)


def _existence(saying: _Saying, ref: ResourceRef) -> tuple[bool, bool]:
    return ref in saying.removals, ref in saying.resources


def _differing(one: Tree, other: Tree, path: Path = ()) -> Iterator[Path]:
    ones, others = _children(one), _children(other)
    if ones is None or others is None or isinstance(one, dict) != isinstance(other, dict):
        if not same(one, other):
            yield path
        return
    for step in ones:
        if step in others:
            yield from _differing(ones[step], others[step], (*path, step))


# -- a higher rank lies on a lower one -----------------------------------------------------------------------------


class _Place(msgspec.Struct):
    """A resource, or the apply policy, while layers are laid on it."""

    tree: Tree = _GONE
    origins: dict[Path, Origin] = {}

    def lay(self, over: Tree, origin: Origin) -> None:
        self.tree = self._merged(self.tree, over, (), origin)

    def _merged(self, base: Tree, over: Tree, path: Path, origin: Origin) -> Tree:
        children = _children(over)
        if children is None:
            self._decide(base, path, origin)
            return _GONE if over is None else over
        merged = _held(base, over)
        if merged is None:
            self._decide(base, path, origin)
            merged = {}
        for step, value in children.items():
            merged[step] = self._merged(merged.get(step, _GONE), value, (*path, step), origin)
        kept = {step: value for step, value in merged.items() if value is not _GONE}
        self._own(path, origin, empty=not kept)
        return kept if isinstance(over, dict) else list(kept.values())

    def _decide(self, base: Tree, path: Path, origin: Origin) -> None:
        """Record who decides this place as a whole; nobody decides anything below it any more."""
        if isinstance(base, (dict, list, tuple)):
            for known in [known for known in self.origins if known[: len(path)] == path]:
                del self.origins[known]
        self.origins[path] = origin

    def _own(self, path: Path, origin: Origin, *, empty: bool) -> None:
        """A map or list is a place of its own only while nothing is in it."""
        if empty:
            self.origins[path] = origin
        else:
            self.origins.pop(path, None)


def _held(base: Tree, over: Tree) -> dict[Any, Tree] | None:
    """What stays of ``base`` under something that merges; None when it is of another shape and goes."""
    return _children(base) if isinstance(base, dict) == isinstance(over, dict) else None


def _children(tree: Tree) -> dict[Any, Tree] | None:
    """The places below a tree that merge one by one, None for those it removes; None for what counts as a whole."""
    if isinstance(tree, dict):
        return dict(tree)
    by_name = named_items(tree) if isinstance(tree, (list, tuple)) else None
    if by_name is None:
        return None
    return {Item(name): None if item.get(REMOVE) is True else item for name, item in by_name.items()}
