"""The impact of a change: masked differences per document and class, and the guard against large deletions. Pure."""

from collections.abc import Iterable
from typing import Final

import msgspec

from governor.domain.bundles import refs
from governor.domain.changes import ClassChange, DocumentChange, RuntimeChange
from governor.domain.documents import DocumentRef
from governor.errors import Detail, GovernorError, Kind
from governor.server.store.bundles import Content
from governor.server.store.documents import DocumentVersion
from governor.values.treediff import diff
from governor.values.trees import Manifest

MAX_DELETED_DOCUMENTS: Final = 5
"""Deleting more documents than this needs ``allowDeletions``."""
MAX_LISTED: Final = 50
"""Runtimes that a response lists unless all are requested, and reasons of one kind in an error."""
MAX_EXAMPLES: Final = 3
"""Runtimes that are named of a class."""


class AffectedClass(msgspec.Struct, frozen=True):
    """Runtimes that had the same bundle before a change and get the same one; ``before`` is None if they had none."""

    before: Content | None
    after: Content
    digest: str
    runtimes: tuple[str, ...]

    @property
    def removed(self) -> int:
        """Return the number of resources that each of the runtimes loses."""
        return len(self.before.refs - self.after.refs) if self.before else 0

    @property
    def loses_most(self) -> bool:
        """Return whether more than half of the resources are removed; a single one may always be."""
        return self.before is not None and self.removed > max(1, len(self.before.refs) // 2)


def check_deletions(deleted: Iterable[DocumentRef], classes: Iterable[AffectedClass]) -> None:
    """Raise if the change deletes so much that it needs ``allowDeletions``."""
    reasons = large_deletions(deleted, classes)
    if reasons:
        message = "the change deletes a lot; if that is intended, allow it with --allow-deletions (allowDeletions)"
        raise GovernorError(Kind.PRECONDITION, "deletions-not-allowed", message, reasons)


def large_deletions(deleted: Iterable[DocumentRef], classes: Iterable[AffectedClass]) -> list[Detail]:
    """Return why the change needs ``allowDeletions``; empty if it does not.

    It does if it deletes a Runtime, or more than five documents, or more than half of the resources of any runtime.
    A single resource may always be removed, even if it is the runtime's only one.
    """
    documents = list(deleted)
    runtimes = [ref for ref in documents if ref.kind == "Runtime"]
    reasons = [
        Detail(reason="deletes a runtime; its agent will no longer be authenticated", document=str(ref))
        for ref in runtimes[:MAX_LISTED]
    ]
    if len(documents) > MAX_DELETED_DOCUMENTS:
        reasons.append(Detail(reason=f"deletes {len(documents)} documents"))
    losing = [each for each in classes if each.loses_most]
    for each in losing[:MAX_LISTED]:
        total = len(each.before.refs) if each.before else 0
        reasons.append(Detail(reason=f"removes {each.removed} of {total} resources from {_named(each.runtimes)}"))
    return reasons


def _named(runtimes: tuple[str, ...]) -> str:
    """Return how a message calls some runtimes."""
    if len(runtimes) == 1:
        return f"runtime {runtimes[0]!r}"
    return f"{len(runtimes)} runtimes, for example {', '.join(map(repr, runtimes[:MAX_EXAMPLES]))}"


def document_change(version: DocumentVersion, old: Manifest | None) -> DocumentChange:
    """Return what a new version changes in a document whose tree was ``old``."""
    if old is None or version.tree is None:
        differences = diff(old or {}, version.tree or {})
    else:
        differences = diff(_keyed(old), _keyed(version.tree))
    return DocumentChange(version.ref, version.version - 1 if old is not None else 0, version.version, differences)


def _keyed(tree: Manifest) -> Manifest:
    """Key the document's resources by kind, namespace and name, so that a difference names the resource."""
    resources = tree["spec"].get("resources")
    if not resources:
        return tree
    return {**tree, "spec": {**tree["spec"], "resources": {_key(each): each for each in resources}}}


def _key(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return "/".join(part for part in (manifest["kind"], metadata.get("namespace"), metadata["name"]) if part)


def class_change(affected: AffectedClass) -> ClassChange:
    """Return what a change does to the resources of a class."""
    differences = diff(_by_ref(affected.before.resources if affected.before else ()), _by_ref(affected.after.resources))
    count, examples = len(affected.runtimes), affected.runtimes[:MAX_EXAMPLES]
    return ClassChange(affected.digest, count, examples, differences)


def runtime_changes(
    classes: Iterable[AffectedClass], changes: Iterable[ClassChange], limit: int | None
) -> tuple[RuntimeChange, ...]:
    """Return the effect on each runtime, at most ``limit`` of them, ordered by name."""
    of_runtime = {name: change for each, change in zip(classes, changes, strict=True) for name in each.runtimes}
    names = sorted(of_runtime)[:limit]
    return tuple(RuntimeChange(name, 0, of_runtime[name].digest, of_runtime[name].differences) for name in names)


def _by_ref(resources: tuple[Manifest, ...]) -> dict[str, Manifest]:
    return {str(ref): manifest for ref, manifest in zip(refs(resources), resources, strict=True)}
