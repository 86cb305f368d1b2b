"""The views that a reflector holds, with indexes; and what changes in it, as events.

Callers read; only the reflector's side writes. It belongs to one event loop: what is read between two awaits is
consistent.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeAlias

import msgspec

from governor.kube.objects import ObjectRef
from governor.kube.reflector.views import V


class Added(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """An object that was not held."""

    ref: ObjectRef
    new: V


class Changed(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """Something that the view reads is different; the object is the same."""

    ref: ObjectRef
    old: V
    new: V


class Removed(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """It is gone, or fits the selectors no longer; ``old`` is what was held last."""

    ref: ObjectRef
    old: V


Event: TypeAlias = Added[V] | Changed[V] | Removed[V]
Index: TypeAlias = Callable[[V], Iterable[Hashable]]
"""The keys under which a view is found; a pure function of the view's fields."""


class Store(Mapping[ObjectRef, V]):
    """Views by reference, to be read."""

    def __init__(self, indexes: Mapping[str, Index[V]]) -> None:
        self._views: dict[ObjectRef, V] = {}
        self._indexes = {name: _Index(keys) for name, keys in indexes.items()}

    def __getitem__(self, ref: ObjectRef) -> V:
        return self._views[ref]

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def find(self, index: str, key: Hashable) -> list[V]:
        """The views that an index has under a key."""
        return [self._views[ref] for ref in self._indexes[index].refs.get(key, ())]


class WritableStore(Store[V]):
    """The same, for the one that follows the server."""

    def put(self, ref: ObjectRef, new: V) -> tuple[Event[V], ...]:
        """Hold a view; what that means for whoever had seen the one before."""
        old = self._views.get(ref)
        if old is not None and old.metadata.uid != new.metadata.uid:
            return (*self.remove(ref), *self.put(ref, new))
        self._views[ref] = new  # also when equal: its resourceVersion is the newer one
        if old is None:
            self._reindex(ref, None, new)
            return (Added(ref, new),)
        if old == new:
            return ()
        self._reindex(ref, old, new)
        return (Changed(ref, old, new),)

    def remove(self, ref: ObjectRef) -> tuple[Event[V], ...]:
        """Hold it no longer; nothing if it was not held."""
        old = self._views.pop(ref, None)
        if old is None:
            return ()
        self._reindex(ref, old, None)
        return (Removed(ref, old),)

    def _reindex(self, ref: ObjectRef, old: V | None, new: V | None) -> None:
        for index in self._indexes.values():
            index.move(ref, old, new)


class _Index(Generic[V]):
    """References by key; a key without references is not kept."""

    def __init__(self, keys: Index[V]) -> None:
        self._keys = keys
        self.refs: dict[Hashable, dict[ObjectRef, None]] = {}

    def move(self, ref: ObjectRef, old: V | None, new: V | None) -> None:
        before = frozenset(() if old is None else self._keys(old))
        after = frozenset(() if new is None else self._keys(new))
        for key in before - after:
            del self.refs[key][ref]
            if not self.refs[key]:
                del self.refs[key]
        for key in after - before:
            self.refs.setdefault(key, {})[ref] = None
