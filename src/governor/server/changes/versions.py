"""New document versions: what a change adds to the stored versions, checked against them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from governor.domain.documents import DocumentRef
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.server.changes.error_list import ErrorList
from governor.server.changes.sensitive_values import seal_document
from governor.server.changes.submission import Submission
from governor.server.store.documents import DocumentVersion
from governor.server.store.sealer import Sealer
from governor.values.digest import digest
from governor.values.trees import Manifest

Stored: TypeAlias = Mapping[DocumentRef, DocumentVersion]


def new_versions(
    submission: Submission, stored: Stored, sealer: Sealer, *, revision: int
) -> tuple[DocumentVersion, ...]:
    """Return sealed new versions of the documents that change; raise what contradicts the stored versions."""
    errors = ErrorList()
    for error in (*_version_mismatches(submission, stored), *_unknown_deletions(submission, stored)):
        errors.add(error)
    trees: dict[DocumentRef, Manifest | None] = dict.fromkeys(submission.deletions)
    for ref, tree in submission.trees.items():
        trees[ref], problems = seal_document(tree, _tree(stored, ref), sealer)
        if problems:
            details = [Detail(reason=problem.reason, path=problem.path, document=str(ref)) for problem in problems]
            errors.add(invalid("sensitive-value", f"{ref} is not valid", details))
    errors.raise_if_any()
    return tuple(_changed(trees, stored, revision))


def restored_versions(
    submission: Submission, stored: Stored, then: Stored, documents: Iterable[DocumentRef], *, revision: int
) -> tuple[DocumentVersion, ...]:
    """Return new versions that restore the content of ``then``: of the given documents, or of all if none is given."""
    errors = ErrorList()
    for error in _version_mismatches(submission, stored):
        errors.add(error)
    selected = tuple(documents)
    for ref in selected:
        if ref not in stored:
            errors.add(_unknown(ref, "this document never existed", "a document to restore does not exist"))
    errors.raise_if_any()
    return tuple(_changed({ref: _tree(then, ref) for ref in selected or stored}, stored, revision))


def existing(stored: Stored, versions: Iterable[DocumentVersion] = ()) -> dict[DocumentRef, Manifest]:
    """Return the trees of all documents that exist once ``versions`` are stored."""
    newest = {**stored, **{version.ref: version for version in versions}}
    return {ref: version.tree for ref, version in newest.items() if version.tree is not None}


def revision_digest(stored: Stored, versions: Iterable[DocumentVersion]) -> str:
    """Return the digest of all documents that exist once ``versions`` are stored."""
    digests = {ref: version.digest for ref, version in stored.items()}
    digests |= {version.ref: version.digest for version in versions}
    return digest({str(ref): each for ref, each in digests.items() if each})


def _changed(trees: Mapping[DocumentRef, Manifest | None], stored: Stored, revision: int) -> Iterator[DocumentVersion]:
    for ref, tree in sorted(trees.items()):
        old = stored.get(ref)
        new_digest = "" if tree is None else digest(tree)
        if new_digest != (old.digest if old else ""):
            yield DocumentVersion(ref.kind, ref.name, old.version + 1 if old else 1, revision, new_digest, tree)


def _tree(stored: Stored, ref: DocumentRef) -> Manifest | None:
    return stored[ref].tree if ref in stored else None


def _version_mismatches(submission: Submission, stored: Stored) -> Iterator[GovernorError]:
    versions = {str(ref): version.version for ref, version in stored.items() if version.tree is not None}
    for name, expected in submission.request.if_match.items():
        found = versions.get(name, 0)
        if found != expected:
            reason = f"expected {_describe(expected)}, found {_describe(found)}; get it again and retry the change"
            detail = Detail(reason=reason, document=name)
            yield GovernorError(
                Kind.PRECONDITION, "version-mismatch", "a document has changed since it was read", [detail]
            )


def _describe(version: int) -> str:
    return f"version {version}" if version else "no such document"


def _unknown_deletions(submission: Submission, stored: Stored) -> Iterator[GovernorError]:
    for ref in submission.deletions:
        if _tree(stored, ref) is None:
            yield _unknown(ref, "there is no such document to delete", "a document to delete does not exist")


def _unknown(ref: DocumentRef, reason: str, message: str) -> GovernorError:
    return GovernorError(Kind.NOT_FOUND, "document-unknown", message, [Detail(reason=reason, document=str(ref))])
