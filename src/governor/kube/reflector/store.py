"""The store of a reflector: cached views with indexes, and the events that its changes emit.

An object that exists but does not fit the view is in the store as ``Unreadable``, so that absent always means deleted,
or rejected by the reflector's ``keep``.
Callers read; only the reflector writes. A store belongs to one event loop, so reads between two awaits are consistent.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeAlias

import msgspec

from governor.kube.objects import ObjectRef
from governor.kube.reflector.views import Unreadable, V

Entry: TypeAlias = V | Unreadable[V]
"""The cached state of an object that exists."""


class Added(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """The object was not in the store."""

    ref: ObjectRef
    new: Entry[V]


class Changed(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """A field of the view has changed, or the object has become unreadable or readable; it has the same uid."""

    ref: ObjectRef
    old: Entry[V]
    new: Entry[V]


class Removed(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """The object was deleted, or is no longer selected or kept; ``old`` is its last cached state."""

    ref: ObjectRef
    old: Entry[V]


Event: TypeAlias = Added[V] | Changed[V] | Removed[V]
Index: TypeAlias = Callable[[V], Iterable[Hashable]]
"""Returns the index keys of a view; a pure function of its fields."""


class Store(Mapping[ObjectRef, Entry[V]]):
    """Read-only mapping of references to cached objects; a reference that is absent has no object."""

    def __init__(self, indexes: Mapping[str, Index[V]]) -> None:
        self._entries: dict[ObjectRef, Entry[V]] = {}
        self._indexes = {name: _Index(keys) for name, keys in indexes.items()}
        self.changes = 0
        """Number of events so far: what was computed from the store is current while it is the same."""

    def __getitem__(self, ref: ObjectRef) -> Entry[V]:
        return self._entries[ref]

    def __iter__(self) -> Iterator[ObjectRef]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, index: str, key: Hashable) -> list[Entry[V]]:
        """Return the objects that an index lists under a key; unreadable ones by their last readable view."""
        return [self._entries[ref] for ref in self._indexes[index].refs.get(key, ())]


class WritableStore(Store[V]):
    """The store with its write operations, for the reflector."""

    def put(self, ref: ObjectRef, new: Entry[V]) -> tuple[Event[V], ...]:
        """Add or replace an object and return the resulting events; a new uid is a removal and an addition."""
        old = self._entries.get(ref)
        if old is not None and old.metadata.uid != new.metadata.uid:
            return (*self.remove(ref), *self.put(ref, new))
        if isinstance(new, Unreadable):
            new = msgspec.structs.replace(new, last=_last_view(old))
        self._entries[ref] = new  # even if equal: its resourceVersion is newer
        if old is None:
            self._reindex(ref, None, new)
            return (Added(ref, new),)
        if _are_equal(old, new):
            return ()
        self._reindex(ref, old, new)
        return (Changed(ref, old, new),)

    def remove(self, ref: ObjectRef) -> tuple[Event[V], ...]:
        """Remove an object and return the resulting events; none if it was not in the store."""
        old = self._entries.pop(ref, None)
        if old is None:
            return ()
        self._reindex(ref, old, None)
        return (Removed(ref, old),)

    def _reindex(self, ref: ObjectRef, old: Entry[V] | None, new: Entry[V] | None) -> None:
        self.changes += 1
        for index in self._indexes.values():
            index.update(ref, _last_view(old), _last_view(new))


def _are_equal(old: Entry[V], new: Entry[V]) -> bool:
    try:
        return old == new
    except RecursionError:
        # A tree that can just be decoded may be too deep to compare.
        return False


def _last_view(entry: Entry[V] | None) -> V | None:
    return entry.last if isinstance(entry, Unreadable) else entry


class _Index(Generic[V]):
    """References by key; empty keys are deleted."""

    def __init__(self, keys: Index[V]) -> None:
        self._keys = keys
        self.refs: dict[Hashable, dict[ObjectRef, None]] = {}

    def update(self, ref: ObjectRef, old: V | None, new: V | None) -> None:
        before = frozenset(() if old is None else self._keys(old))
        after = frozenset(() if new is None else self._keys(new))
        for key in before - after:
            del self.refs[key][ref]
            if not self.refs[key]:
                del self.refs[key]
        for key in after - before:
            self.refs.setdefault(key, {})[ref] = None
