"""Why a runtime has what it has: each field of its compiled resources with the profile that decided it."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import compile_bundle
from governor.domain.documents import ApplyPolicy, DocumentRef
from governor.domain.layering import Origin
from governor.server.changes.compiler import read_documents
from governor.server.store.documents import newest_versions
from governor.values.paths import Path, render
from governor.values.trees import Tree, leaf_at, masked
from governor.wire.rest import FieldExplanation, ResourceExplanation, RuntimeExplanation


def read_explanation(connection: sa.Connection, runtime: str) -> RuntimeExplanation | None:
    """The explanation of one runtime by the documents as they are now; None when it does not exist."""
    stored = newest_versions(connection)
    documents = read_documents(version.tree for version in stored.values() if version.tree is not None)
    if runtime not in documents.runtimes:
        return None
    bundle, folded = compile_bundle(documents.runtimes[runtime], list(documents.layers.values()))
    versions = {name: stored[DocumentRef("Profile", name)].version for name in documents.layers}
    resources = tuple(
        ResourceExplanation(ref, tuple(_fields(manifest, folded.origins[ref], versions)))
        for ref, manifest in zip(folded.resources, bundle.resources, strict=True)
    )
    return RuntimeExplanation(
        runtime, bundle.digest, resources, tuple(_policy(bundle.apply, folded.apply_origins, versions))
    )


def _fields(tree: Tree, origins: Mapping[Path, Origin], versions: Mapping[str, int]) -> Iterator[FieldExplanation]:
    for path, origin in sorted(origins.items(), key=lambda item: render(item[0])):
        value = masked(leaf_at(tree, path))
        yield FieldExplanation(render(path), value, origin.profile, versions[origin.profile], origin.rank[1])


def _policy(
    policy: ApplyPolicy, origins: Mapping[Path, Origin], versions: Mapping[str, int]
) -> Iterator[FieldExplanation]:
    """Every field of the policy; what no profile decided is the default."""
    whole: dict[str, Any] = msgspec.to_builtins(policy)
    decided = {each.path: each for each in _fields(whole, origins, versions)}
    for name, value in whole.items():
        known = decided.get(name)
        yield known if known is not None and known.value is not None else FieldExplanation(name, value)
