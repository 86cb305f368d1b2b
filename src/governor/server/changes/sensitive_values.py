"""Sensitive values of a profile: sealed before they are stored, and kept where a submitted document has ``***``.

``***`` keeps the sealed value that the stored version has at the same path of the same resource, with list items
matched by name. Anywhere else it is an error, so a mask is never stored as a password.
"""

from collections.abc import Iterator

from governor.domain import variables
from governor.domain.dapr.sensitive import sensitive_paths
from governor.domain.documents import resource_ref
from governor.errors import Detail
from governor.server.store.sealer import Sealer
from governor.values import paths
from governor.values.paths import Item, Path
from governor.values.secret import MASK, Sealed
from governor.values.trees import Manifest, Tree, leaf_at, named_items

_RESOURCES: Path = ("spec", "resources")


def seal_document(tree: Manifest, stored: Manifest | None, sealer: Sealer) -> tuple[Manifest, list[Detail]]:
    """Return the sealed document and the values that could not be sealed or kept; details lack the document's name."""
    resources = leaf_at(tree, _RESOURCES) or []
    if not resources:
        return tree, []
    old = {resource_ref(manifest, ""): manifest for manifest in leaf_at(stored, _RESOURCES) or []}
    problems: list[Detail] = []
    sealed = []
    for index, manifest in enumerate(resources):
        sealing = _ManifestSealing(sealer, frozenset(sensitive_paths(manifest)), (*_RESOURCES, index), problems)
        sealed.append(sealing.walk(manifest, old.get(resource_ref(manifest, "")), ()))
    return {**tree, "spec": {**tree["spec"], "resources": sealed}}, problems


class _ManifestSealing:
    """Walk over one manifest that seals its sensitive values."""

    def __init__(self, sealer: Sealer, sensitive: frozenset[Path], place: Path, problems: list[Detail]) -> None:
        self._sealer = sealer
        self._sensitive = sensitive
        self._place = place
        self._problems = problems

    def walk(self, tree: Tree, old: Tree, path: Path) -> Tree:
        if tree == MASK:
            return self._keep(old, path)
        if path in self._sensitive and tree is not None:
            return self._seal(tree, old, path)
        if isinstance(tree, dict):
            return {key: self.walk(value, leaf_at(old, (key,)), (*path, key)) for key, value in tree.items()}
        if isinstance(tree, list):
            pairs = enumerate(_paired_by_name(tree, old))
            return [self.walk(item, old_item, (*path, index)) for index, (item, old_item) in pairs]
        return tree

    def _keep(self, old: Tree, path: Path) -> Tree:
        if not isinstance(old, Sealed):
            self._reject(path, f"{MASK} keeps a stored sensitive value, but none is stored here; write the value")
        return old

    def _seal(self, tree: Tree, old: Tree, path: Path) -> Tree:
        if isinstance(tree, str) and variables.has_variables(tree):
            self._reject(path, "a sensitive value is sealed and cannot contain ${runtime...}; write it per runtime")
            return tree
        sealed = self._sealer.seal(tree)
        return old if isinstance(old, Sealed) and old.mac == sealed.mac else sealed

    def _reject(self, path: Path, reason: str) -> None:
        self._problems.append(Detail(reason=reason, path=paths.render((*self._place, *path))))


def _paired_by_name(items: list[Tree], old: Tree) -> Iterator[tuple[Tree, Tree]]:
    """Yield each item with the old item of the same name, or with None if the list is not keyed by name."""
    by_name = named_items(items)
    if by_name is None:
        yield from ((item, None) for item in items)
    else:
        yield from ((item, leaf_at(old, (Item(name),))) for name, item in by_name.items())
