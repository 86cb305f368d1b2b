"""Folding profiles into one configuration for one runtime, and knowing the origin of every field.

Layers lie in the order everything, groups, the one runtime; inside each by priority. Maps merge deeply, lists of named
items by name, other lists and scalars replace; null removes a key and ``{name, $remove: true}`` a list item. Two layers
of the same rank that decide one place differently are a conflict, so their order never matters.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from governor.domain.documents import Profile, ResourceRef, resource_ref
from governor.values.paths import Item, Path
from governor.values.trees import Manifest, Tree, named_items

REMOVE: Final = "$remove"


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
    merge = _Fold()
    for layer in sorted(layers, key=lambda item: (item.rank, item.name)):
        merge.lay(layer, default_namespace)
    resources = {ref: tree for ref, tree in sorted(merge.resources.items()) if tree is not _GONE}
    return Folded(
        resources,
        {} if merge.apply is _GONE else merge.apply,
        {ref: merge.origins[ref] for ref in resources},
        tuple(merge.conflicts),
    )


_GONE: Final[Any] = object()


class _Fold:
    """The state of one fold: what is there so far and who decided it."""

    def __init__(self) -> None:
        self.resources: dict[ResourceRef, Tree] = {}
        self.apply: Tree = _GONE
        self.origins: dict[ResourceRef, dict[Path, Origin]] = {}
        self.apply_origins: dict[Path, Origin] = {}
        self.conflicts: list[Conflict] = []

    def lay(self, layer: Layer, default_namespace: str) -> None:
        origin = Origin(layer.rank, layer.name)
        for removal in layer.profile.spec.removals:
            ref = ResourceRef(removal.kind, removal.namespace or default_namespace, removal.name)
            self.resources[ref] = self._place(ref, origin).remove(self.resources.get(ref, _GONE), ())
        for manifest in layer.profile.spec.resources:
            ref = resource_ref(manifest, default_namespace)
            placed = {**manifest, "metadata": {**manifest["metadata"], "namespace": ref.namespace}}
            self.resources[ref] = self._place(ref, origin).merge(self.resources.get(ref, _GONE), placed, ())
        apply_place = _Place(None, self.apply_origins, origin, self.conflicts)
        self.apply = apply_place.merge(self.apply, layer.apply, ()) if layer.apply else self.apply

    def _place(self, ref: ResourceRef, origin: Origin) -> "_Place":
        return _Place(ref, self.origins.setdefault(ref, {}), origin, self.conflicts)


class _Place(msgspec.Struct):
    """One resource while one layer is laid over it."""

    resource: ResourceRef | None
    origins: dict[Path, Origin]
    origin: Origin
    conflicts: list[Conflict]

    def merge(self, base: Tree, over: Tree, path: Path) -> Tree:
        """Lay ``over`` on ``base``; _GONE stands for a place that is not there."""
        if over is None:
            return self.remove(base, path)
        if (children := _children(over)) is None:
            return self._replace(base, over, path)
        merged = self._held(base, over, path)
        for step, value in children.items():
            merged[step] = self._merge_child(merged.get(step, _GONE), value, (*path, step))
        kept = [(step, value) for step, value in merged.items() if value is not _GONE]
        return dict(kept) if isinstance(over, dict) else [value for _, value in kept]

    def _merge_child(self, base: Tree, over: Tree, path: Path) -> Tree:
        removes = isinstance(path[-1], Item) and over.get(REMOVE) is True
        return self.remove(base, path) if removes else self.merge(base, over, path)

    def _held(self, base: Tree, over: Tree, path: Path) -> dict[Any, Tree]:
        """What stays of ``base`` under a container that merges; something of another shape does not."""
        held = _children(base) if isinstance(base, dict) == isinstance(over, dict) else None
        if held is None and (base is not _GONE or path in self.origins or not over):
            self._claim(path, same=False)
        return held or {}

    def remove(self, base: Tree, path: Path) -> Tree:
        self._claim(path, same=base is _GONE)
        return _GONE

    def _replace(self, base: Tree, over: Tree, path: Path) -> Tree:
        self._claim(path, same=_same(base, over))
        return over

    def _claim(self, path: Path, *, same: bool) -> None:
        """Record who decides this place now; deciding it differently at the same rank is a conflict."""
        below = [known for known in self.origins if known[: len(path)] == path]
        if not same:
            rivals = {self.origins[known].profile for known in below if self.origins[known].rank == self.origin.rank}
            for rival in sorted(rivals - {self.origin.profile}):
                pair = (rival, self.origin.profile)
                self.conflicts.append(Conflict(self.resource, path, pair, self.origin.rank[1]))
        for known in below:
            del self.origins[known]
        self.origins[path] = self.origin


def _children(tree: Tree) -> dict[Any, Tree] | None:
    """The places below a tree that merge one by one; None for what is replaced as a whole."""
    if isinstance(tree, dict):
        return dict(tree)
    if isinstance(tree, (list, tuple)):
        by_name = named_items(tree)
        return None if by_name is None else {Item(name): item for name, item in by_name.items()}
    return None


def _same(left: Tree, right: Tree) -> bool:
    if hasattr(left, "mac") and hasattr(right, "mac"):
        return bool(left.mac == right.mac)
    return type(left) is type(right) and bool(left == right)
