"""The impact of a change: masked differences per document and runtime, and the guard against large deletions. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from governor.domain.bundles import Bundle, Delivery, refs
from governor.domain.changes import DocumentChange, RuntimeChange
from governor.domain.documents import DocumentRef, ResourceRef
from governor.errors import Detail, GovernorError, Kind
from governor.server.store.documents import DocumentVersion
from governor.values.treediff import diff
from governor.values.trees import Manifest

MAX_DELETED_DOCUMENTS: Final = 5
"""Deleting more documents than this needs ``allowDeletions``."""


class ResourceSets(msgspec.Struct, frozen=True):
    """Resources of one runtime before and after a change."""

    before: frozenset[ResourceRef]
    after: frozenset[ResourceRef]

    @property
    def removed(self) -> int:
        """Return the number of resources that the runtime loses."""
        return len(self.before - self.after)


def check_deletions(
    versions: Iterable[DocumentVersion], newest: Mapping[str, Delivery], bundles: Mapping[str, Bundle]
) -> None:
    """Raise if the change deletes so much that it needs ``allowDeletions``."""
    deleted = [version.ref for version in versions if version.tree is None]
    resources = {
        name: ResourceSets(frozenset(refs(delivery.resources)), frozenset(refs(bundles[name].resources)))
        for name, delivery in newest.items()
    }
    reasons = large_deletions(deleted, resources)
    if reasons:
        message = "the change deletes a lot; if that is intended, allow it with --allow-deletions (allowDeletions)"
        raise GovernorError(Kind.PRECONDITION, "deletions-not-allowed", message, reasons)


def large_deletions(deleted: Iterable[DocumentRef], resources: Mapping[str, ResourceSets]) -> list[Detail]:
    """Return why the change needs ``allowDeletions``; empty if it does not.

    It does if it deletes a Runtime, or more than five documents, or more than half of the resources of any runtime.
    A single resource may always be removed, even if it is the runtime's only one.
    """
    documents = list(deleted)
    reasons = [
        Detail(reason="deletes a runtime; its agent will no longer be authenticated", document=str(ref))
        for ref in documents
        if ref.kind == "Runtime"
    ]
    if len(documents) > MAX_DELETED_DOCUMENTS:
        reasons.append(Detail(reason=f"deletes {len(documents)} documents"))
    reasons.extend(
        Detail(reason=f"removes {each.removed} of {len(each.before)} resources from runtime {runtime!r}")
        for runtime, each in sorted(resources.items())
        if each.removed > max(1, len(each.before) // 2)
    )
    return reasons


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


def runtime_change(delivery: Delivery, newest: Delivery | None, *, dry_run: bool) -> RuntimeChange:
    """Return what a delivery changes for its runtime compared with the newest one."""
    differences = diff(_by_ref(newest.resources if newest else ()), _by_ref(delivery.resources))
    return RuntimeChange(delivery.runtime, 0 if dry_run else delivery.sequence, delivery.digest, differences)


def _by_ref(resources: tuple[Manifest, ...]) -> dict[str, Manifest]:
    return {str(ref): manifest for ref, manifest in zip(refs(resources), resources, strict=True)}
