"""One change on its way to its decision, computed twice: before its transaction, and authoritatively in it.

The first pass seals, compiles and compares outside of the only writer. The second one repeats only what other changes
have made obsolete meanwhile, so that a long change does not hold up the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import Bundle
from governor.domain.changes import Change, ChangeState, DocumentChange
from governor.domain.documents import DocumentRef, Strategy
from governor.domain.layering import Layer
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.server.changes.catalogue import PROFILE, RUNTIME, Catalogue
from governor.server.changes.compiler import Compiler, compile_affected, ended_holds, read_layer, unused_profiles
from governor.server.changes.deliveries import is_due
from governor.server.changes.impact import (
    MAX_LISTED,
    AffectedClass,
    check_deletions,
    class_change,
    document_change,
    runtime_changes,
)
from governor.server.changes.ownership import Ownership
from governor.server.changes.rolling import check_rolling
from governor.server.changes.sensitive_values import seal_document
from governor.server.changes.submission import Submission
from governor.server.changes.versions import SealedDocument, check_known, new_versions, restored_versions
from governor.server.store.bundles import Content, Contents, Draft, all_drafts
from governor.server.store.documents import DocumentVersion, changed_since, versions_of
from governor.server.store.runtime_states import Target, find_inventories, find_targets
from governor.server.store.sealer import Sealer
from governor.values.digest import digest
from governor.wire.rest import Rollback


class Decision(msgspec.Struct, frozen=True):
    """An accepted change with the rows that it adds; no rows if no document changes."""

    change: Change
    catalogue: Catalogue
    versions: tuple[DocumentVersion, ...] = ()
    bundles: dict[str, Content] = {}
    drafts: tuple[Draft, ...] = ()


class _Pass(NamedTuple):
    """What a change means for one catalogue; it depends on nothing else."""

    before: Catalogue
    after: Catalogue
    versions: tuple[DocumentVersion, ...]
    message: str
    bundles: dict[str, Bundle]
    documents: tuple[DocumentChange, ...] = ()
    warnings: tuple[str, ...] = ()


class Preparation:
    """A checked request, and everything that was computed for it so far; ``name`` is the id of the change."""

    def __init__(
        self,
        submission: Submission,
        author: str,
        name: str,
        *,
        sealer: Sealer,
        ownership: Ownership,
        contents: Contents,
        clock: Clock,
    ) -> None:
        self._submission = submission
        self._author = author
        self._name = name
        self._sealer = sealer
        self._ownership = ownership
        self._contents = contents
        self._clock = clock
        self._stored: dict[DocumentRef, DocumentVersion] = {}
        self._sealed: dict[DocumentRef, tuple[int, SealedDocument]] = {}
        self._pass: _Pass | None = None
        self.compiler = Compiler()

    def decide(self, connection: sa.Connection, catalogue: Catalogue) -> Decision:
        """Decide the change for the state that the connection sees, whose newest revision the catalogue is of."""
        is_outdated = self._pass is None or self._pass.before is not catalogue
        if self._pass is None or is_outdated:
            self._pass = self._compute(connection, catalogue)
        request, found, time = self._submission.request, self._pass, self._clock.now()
        if not found.versions:
            change = Change("", ChangeState.ACCEPTED, self._author, found.message, time, None, (), ())
            return Decision(change, catalogue)
        due = self._due(connection, found)
        classes = self._classes(connection, due, found)
        if not request.allow_deletions:
            check_deletions((each.ref for each in found.versions if each.tree is None), classes)
        if is_outdated:
            _check_rolling(connection, due, classes, found)
        changes = tuple(map(class_change, classes))
        change = Change(
            id=self._name,
            state=ChangeState.ACCEPTED,
            author=self._author,
            message=found.message,
            time=time,
            revision=None if request.dry_run else found.after.revision,
            documents=found.documents,
            runtimes=runtime_changes(classes, changes, None if request.all_runtimes else MAX_LISTED),
            warnings=found.warnings,
            classes=changes,
        )
        contents = {each.digest: each.after for each in classes}
        return Decision(change, found.after, found.versions, contents, tuple(_drafts(due, found, time)))

    def _compute(self, connection: sa.Connection, catalogue: Catalogue) -> _Pass:
        versions, message = self._versions(connection, catalogue)
        touched = [version.ref for version in versions]
        self._ownership.check(touched, self._author)
        if not versions:
            return _Pass(catalogue, catalogue, (), message, {})
        after = catalogue.updated(catalogue.revision + 1, versions)
        new = {each.name: each for each in versions if each.kind == PROFILE and each.tree is not None}

        def load(names: Sequence[str]) -> dict[str, Layer]:
            others = [DocumentRef(PROFILE, name) for name in names if name not in new]
            trees = {name: new[name].tree for name in names if name in new}
            trees |= {ref.name: each.tree for ref, each in versions_of(connection, others).items()}
            return {name: read_layer(tree) for name, tree in trees.items() if tree is not None}

        bundles = compile_affected(self.compiler, catalogue, after, touched, load)
        self._load_stored(connection, catalogue, touched)
        documents = tuple(document_change(each, self._old_tree(each.ref, catalogue)) for each in versions)
        warnings = (*unused_profiles(after, touched), *ended_holds(catalogue, after, touched, self._clock.now()))
        return _Pass(catalogue, after, versions, message, bundles, documents, warnings)

    def _versions(self, connection: sa.Connection, catalogue: Catalogue) -> tuple[tuple[DocumentVersion, ...], str]:
        """Return the new versions that the request asks for, and the message of its revision."""
        request = self._submission.request
        if request.rollback is None:
            self._load_stored(connection, catalogue, self._submission.trees)
            return new_versions(self._submission, catalogue, lambda ref: self._seal(ref, catalogue)), request.message
        target = _rollback_target(request.rollback, catalogue.revision)
        check_known(request.rollback.documents, catalogue)
        selected = request.rollback.documents or changed_since(connection, target)
        absent = {ref: DocumentVersion(ref.kind, ref.name, 0, 0, "", None) for ref in selected}
        then = absent | versions_of(connection, selected, at=target)
        return restored_versions(self._submission, catalogue, then), (
            request.message or f"rollback to revision {target}"
        )

    def _seal(self, ref: DocumentRef, catalogue: Catalogue) -> SealedDocument:
        """Seal a document, once for each stored version of it, whose sealed values it may keep."""
        entry = catalogue.entries.get(ref)
        version = entry.version if entry else 0
        known = self._sealed.get(ref)
        if known is None or known[0] != version:
            old = self._old_tree(ref, catalogue)
            tree, problems = seal_document(self._submission.trees[ref], old, self._sealer)
            known = self._sealed[ref] = version, SealedDocument(tree, digest(tree), tuple(problems))
        return known[1]

    def _load_stored(self, connection: sa.Connection, catalogue: Catalogue, documents: Iterable[DocumentRef]) -> None:
        """Read the stored versions of some documents, unless they are known."""
        missing = [
            ref
            for ref in documents
            if (entry := catalogue.entries.get(ref)) is not None
            and (ref not in self._stored or self._stored[ref].version != entry.version)
        ]
        self._stored |= versions_of(connection, missing)

    def _old_tree(self, ref: DocumentRef, catalogue: Catalogue) -> dict[str, object] | None:
        return self._stored[ref].tree if catalogue.exists(ref) else None

    def _due(self, connection: sa.Connection, found: _Pass) -> dict[str, Target | None]:
        """Return the runtimes to which the change delivers something, with what was delivered to them before."""
        targets = find_targets(connection, found.bundles)
        for draft in all_drafts(connection):
            target = Target(draft.digest, draft.apply, draft.windows, draft.hold)
            targets |= {name: target for name, _ in draft.pending if name in found.bundles}
        runtimes, known = found.after.runtimes, found.before.runtimes
        return {
            name: targets.get(name)
            for name, bundle in found.bundles.items()
            if is_due(bundle, runtimes[name], targets.get(name), is_new=name not in known)
        }

    def _classes(self, connection: sa.Connection, due: dict[str, Target | None], found: _Pass) -> list[AffectedClass]:
        members: dict[tuple[str, str], list[str]] = {}
        for name, target in due.items():
            members.setdefault((target.digest if target else "", found.bundles[name].digest), []).append(name)
        before = self._contents.find(connection, {old for old, _ in members if old})
        resources = {bundle.digest: bundle.resources for bundle in _distinct(found.bundles)}
        after = {new: Content.of(resources[new]) for _, new in members}
        return [AffectedClass(before.get(old), after[new], new, tuple(names)) for (old, new), names in members.items()]


def _check_rolling(
    connection: sa.Connection, due: Iterable[str], classes: Iterable[AffectedClass], found: _Pass
) -> None:
    """Check strategy rolling once in each pass: an agent refuses what its inventory did not show in time."""
    rolling = frozenset(name for name in due if found.bundles[name].apply.strategy is Strategy.ROLLING)
    check_rolling(classes, rolling, partial(find_inventories, connection))


def _drafts(due: Iterable[str], found: _Pass, time: datetime) -> Iterator[Draft]:
    """Yield one draft for the runtimes that share bundle, windows and hold."""
    members: dict[tuple[object, ...], list[str]] = {}
    for name in due:
        spec = found.after.runtimes[name].spec
        members.setdefault((id(found.bundles[name]), spec.windows, spec.hold), []).append(name)
    entries = found.after.entries
    for names in members.values():
        bundle, spec = found.bundles[names[0]], found.after.runtimes[names[0]].spec
        profiles = [DocumentRef(PROFILE, name) for name in bundle.profiles]
        yield Draft(
            found.after.revision,
            bundle.digest,
            bundle.apply,
            {str(ref): entries[ref].version for ref in profiles},
            spec.windows,
            spec.hold,
            time,
            tuple((name, entries[DocumentRef(RUNTIME, name)].version) for name in names),
        )


def _distinct(bundles: dict[str, Bundle]) -> Iterable[Bundle]:
    return {id(each): each for each in bundles.values()}.values()


def _rollback_target(rollback: Rollback, newest: int) -> int:
    target = newest - 1 if rollback.revision is None else rollback.revision
    if 0 < target <= newest:
        return target
    if rollback.revision is None:
        message = "there is no revision before the newest, so there is nothing to roll back to"
        raise GovernorError(Kind.PRECONDITION, "nothing-to-roll-back", message)
    raise GovernorError(Kind.NOT_FOUND, "revision-unknown", f"there is no revision {target}; see `governor history`")
