"""What a change does, as people are shown it: for documents and for runtimes, masked. Pure."""

from governor.domain.bundles import Delivery
from governor.domain.changes import DocumentChange, RuntimeChange
from governor.server.changes.deliveries import by_reference
from governor.server.store.documents import DocumentVersion
from governor.values.treediff import diff
from governor.values.trees import Manifest


def document_change(version: DocumentVersion, old: Manifest | None) -> DocumentChange:
    """What becomes of a document whose tree was ``old``."""
    if old is None or version.tree is None:
        differences = diff(old or {}, version.tree or {})
    else:
        differences = diff(_shown(old), _shown(version.tree))
    return DocumentChange(version.ref, version.version - 1 if old is not None else 0, version.version, differences)


def _shown(tree: Manifest) -> Manifest:
    """A document for a difference: its resources under their names instead of in a list."""
    if not tree["spec"].get("resources"):
        return tree
    return {**tree, "spec": {**tree["spec"], "resources": {_told(each): each for each in tree["spec"]["resources"]}}}


def _told(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return "/".join(part for part in (manifest["kind"], metadata.get("namespace"), metadata["name"]) if part)


def runtime_change(delivery: Delivery, newest: Delivery | None, *, dry_run: bool) -> RuntimeChange:
    """What a delivery changes for its runtime."""
    differences = diff(by_reference(newest.resources if newest else ()), by_reference(delivery.resources))
    return RuntimeChange(delivery.runtime, 0 if dry_run else delivery.sequence, delivery.digest, differences)
