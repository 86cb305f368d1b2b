"""All documents at one revision, indexed by selector: which runtimes a profile selects, which profiles a runtime has.

Contents of profiles are excluded; they are read when they are compiled.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Self, TypeAlias, TypeVar

import msgspec
import sqlalchemy as sa

from governor.domain.documents import DocumentRef, Runtime, Selector, read_document
from governor.server.store.documents import DocumentVersion, newest_revision, newest_versions
from governor.values.digest import canonical
from governor.values.trees import Manifest

K = TypeVar("K", bound=Hashable)

Label: TypeAlias = tuple[str, str]
Place: TypeAlias = str | Label | None
_Places: TypeAlias = dict[K, set[str]]

RUNTIME: Final = "Runtime"
PROFILE: Final = "Profile"
_KEPT: Final = 4


class Entry(msgspec.Struct, frozen=True):
    """The newest version of a document; the digest is empty if it was deleted."""

    version: int
    digest: str


class Catalogue(msgspec.Struct, frozen=True, dict=True):
    """An immutable index of the documents that exist after one revision; ``updated`` returns that of the next.

    ``entries`` also has deleted documents, whose versions continue if they are created again.
    """

    revision: int = 0
    digest: str = ""
    """Of the revision."""
    entries: Mapping[DocumentRef, Entry] = {}
    lines: Mapping[str, bytes] = {}
    """Existing documents in the order of their references, each as JSON with its digest."""
    runtimes: Mapping[str, Runtime] = {}
    selectors: Mapping[str, Selector] = {}
    labelled: Mapping[Label, frozenset[str]] = {}
    """Runtimes by label."""
    placed: Mapping[Place, frozenset[str]] = {}
    """Profiles by what they require first: a runtime's name, a label, or None."""

    def updated(self, revision: int, versions: Iterable[DocumentVersion]) -> Self:
        """Return the index after a revision with these new versions."""
        given = list(versions)
        entries = {**self.entries, **{each.ref: Entry(each.version, each.digest) for each in given}}
        changed = {kind: {each.name: each.tree for each in given if each.kind == kind} for kind in (RUNTIME, PROFILE)}
        fields = {**self._with_runtimes(changed[RUNTIME]), **self._with_profiles(changed[PROFILE])}
        lines = _lines(self.lines, given)
        return msgspec.structs.replace(
            self, revision=revision, digest=_revision_digest(lines), entries=entries, lines=lines, **fields
        )

    @property
    def names(self) -> list[str]:
        """Return the names of all runtimes, ordered."""
        ordered: list[str] | None = self.__dict__.get("_names")
        if ordered is None:
            ordered = self.__dict__["_names"] = sorted(self.runtimes)
        return ordered

    def exists(self, ref: DocumentRef) -> bool:
        """Return whether a document exists."""
        entry = self.entries.get(ref)
        return entry is not None and bool(entry.digest)

    def selected_by(self, selector: Selector) -> set[str]:
        """Return the names of the runtimes that a selector matches."""
        if selector.runtime is not None:
            return {selector.runtime} & self.runtimes.keys()
        sets = [self.labelled.get(label, frozenset()) for label in selector.match_labels.items()]
        if not selector.match_expressions:
            return set.intersection(*map(set, sorted(sets, key=len))) if sets else set(self.runtimes)
        candidates = min(sets, key=len) if sets else self.runtimes.keys()
        return {name for name in candidates if selector.matches(name, self.runtimes[name].metadata.labels)}

    def profiles_of(self, runtime: Runtime) -> tuple[str, ...]:
        """Return the names of the profiles that select a runtime."""
        shared = self._shared_profiles(runtime)
        own = self.placed.get(runtime.metadata.name)
        return shared if own is None else (*shared, *sorted(own))

    def _shared_profiles(self, runtime: Runtime) -> tuple[str, ...]:
        """Return the profiles that select a runtime by its labels; runtimes with the same labels share the result."""
        labels = runtime.metadata.labels
        known: dict[tuple[Label, ...], tuple[str, ...]] = self.__dict__.setdefault("_known", {})
        key = tuple(sorted(labels.items()))
        found = known.get(key)
        if found is None:
            candidates = sorted(name for place in (None, *key) for name in self.placed.get(place, ()))
            found = known[key] = tuple(name for name in candidates if self.selectors[name].matches("", labels))
        return found

    def _with_runtimes(self, changed: Mapping[str, Manifest | None]) -> dict[str, object]:
        if not changed:
            return {}
        runtimes = dict(self.runtimes)
        removed: _Places[Label] = {}
        added: _Places[Label] = {}
        for name, tree in changed.items():
            old = runtimes.pop(name, None)
            _put(removed, name, old.metadata.labels.items() if old else ())
            if tree is not None:
                document = read_document(tree)
                assert isinstance(document, Runtime)  # noqa: S101 - selected by this kind
                runtimes[name] = document
                _put(added, name, document.metadata.labels.items())
        return {"runtimes": runtimes, "labelled": _reindexed(self.labelled, removed, added)}

    def _with_profiles(self, changed: Mapping[str, Manifest | None]) -> dict[str, object]:
        if not changed:
            return {}
        selectors = dict(self.selectors)
        removed: _Places[Place] = {}
        added: _Places[Place] = {}
        for name, tree in changed.items():
            old = selectors.pop(name, None)
            _put(removed, name, [_place(old)] if old is not None else ())
            if tree is not None:
                selectors[name] = msgspec.convert(tree["spec"]["selector"], Selector)
                _put(added, name, [_place(selectors[name])])
        return {"selectors": selectors, "placed": _reindexed(self.placed, removed, added)}


class Catalogues:
    """The catalogues of the last revisions, in memory. Used from several threads.

    The newest one in memory may be of a transaction that was rolled back, so each is found by its digest too.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], Catalogue] = {}
        self.committed = Catalogue()
        """The newest one whose revision is stored; used on the event loop."""

    def at(self, connection: sa.Connection) -> Catalogue:
        """Return the catalogue of a transaction's newest revision."""
        newest = newest_revision(connection)
        found = self._known.get(newest)
        if found is None:
            number, digest = newest
            found = Catalogue().updated(number, newest_versions(connection).values()) if number else Catalogue()
            found = msgspec.structs.replace(found, digest=digest)
            self.remember(found)
        return found

    def remember(self, catalogue: Catalogue) -> None:
        """Keep a catalogue, and of the earlier ones only the last."""
        known = {**self._known, (catalogue.revision, catalogue.digest): catalogue}
        self._known = dict(list(known.items())[-_KEPT:])


def _lines(lines: Mapping[str, bytes], versions: Iterable[DocumentVersion]) -> dict[str, bytes]:
    """Return the lines after some new versions; they are sorted only if there are other documents than before."""
    changed = {str(each.ref): _line(each) for each in versions}
    merged = {**lines, **changed}
    if len(merged) == len(lines) and all(changed.values()):
        return merged
    return dict(sorted((ref, line) for ref, line in merged.items() if line))


def _line(version: DocumentVersion) -> bytes:
    return canonical({str(version.ref): version.digest})[1:-1] if version.digest else b""


def _revision_digest(lines: Mapping[str, bytes]) -> str:
    """Return the digest of the canonical JSON of all references with their digests."""
    # msgspec needs quadratic time for keys that are sorted except for a smaller one at the end, such as a profile after
    # all runtimes: 134 ms with 10,000 documents.
    return f"sha256:{hashlib.sha256(b'{' + b','.join(lines.values()) + b'}').hexdigest()}"


def _place(selector: Selector) -> Place:
    return selector.runtime or min(selector.match_labels.items(), default=None)


def _put(places: _Places[K], name: str, at: Iterable[K]) -> None:
    for place in at:
        places.setdefault(place, set()).add(name)


def _reindexed(index: Mapping[K, frozenset[str]], removed: _Places[K], added: _Places[K]) -> dict[K, frozenset[str]]:
    """Return an index without some names, then with others; places without names are dropped."""
    changed = {
        place: index.get(place, frozenset()) - removed.get(place, set()) | added.get(place, set())
        for place in removed.keys() | added.keys()
    }
    return {place: names for place, names in {**index, **changed}.items() if names}
