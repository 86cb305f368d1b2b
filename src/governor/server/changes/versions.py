"""New document versions: what a change adds to the stored versions, checked against them. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from governor.domain.documents import DocumentRef
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.server.changes.catalogue import Catalogue
from governor.server.changes.error_list import ErrorList
from governor.server.changes.submission import Submission
from governor.server.store.documents import DocumentVersion
from governor.values.trees import Manifest

Stored: TypeAlias = Mapping[DocumentRef, DocumentVersion]


class SealedDocument(NamedTuple):
    """A submitted document with its sensitive values sealed, and what could not be sealed."""

    tree: Manifest
    digest: str
    problems: tuple[Detail, ...]


Seal: TypeAlias = Callable[[DocumentRef], SealedDocument]
"""Seals a document of the submission."""


def new_versions(submission: Submission, catalogue: Catalogue, seal: Seal) -> tuple[DocumentVersion, ...]:
    """Return sealed new versions of the documents that change; raise what contradicts the stored versions."""
    errors = ErrorList()
    for error in (*_version_mismatches(submission, catalogue), *_unknown_deletions(submission, catalogue)):
        errors.add(error)
    trees: dict[DocumentRef, tuple[Manifest | None, str]] = dict.fromkeys(submission.deletions, (None, ""))
    for ref in submission.trees:
        sealed = seal(ref)
        trees[ref] = sealed.tree, sealed.digest
        if sealed.problems:
            details = [Detail(reason=each.reason, path=each.path, document=str(ref)) for each in sealed.problems]
            errors.add(invalid("sensitive-value", f"{ref} is not valid", details))
    errors.raise_if_any()
    return tuple(_changed(trees, catalogue))


def restored_versions(submission: Submission, catalogue: Catalogue, then: Stored) -> tuple[DocumentVersion, ...]:
    """Return new versions that restore the content of ``then``; a document that is not in it did not exist."""
    errors = ErrorList()
    for error in _version_mismatches(submission, catalogue):
        errors.add(error)
    errors.raise_if_any()
    return tuple(_changed({ref: (each.tree, each.digest) for ref, each in then.items()}, catalogue))


def check_known(documents: Iterable[DocumentRef], catalogue: Catalogue) -> None:
    """Raise if a document never existed."""
    errors = ErrorList()
    for ref in documents:
        if ref not in catalogue.entries:
            errors.add(_unknown(ref, "this document never existed", "a document to restore does not exist"))
    errors.raise_if_any()


def _changed(
    trees: Mapping[DocumentRef, tuple[Manifest | None, str]], catalogue: Catalogue
) -> Iterator[DocumentVersion]:
    for ref, (tree, new_digest) in sorted(trees.items(), key=lambda each: each[0]):
        old = catalogue.entries.get(ref)
        if new_digest != (old.digest if old else ""):
            version = old.version + 1 if old else 1
            yield DocumentVersion(ref.kind, ref.name, version, catalogue.revision + 1, new_digest, tree)


def _version_mismatches(submission: Submission, catalogue: Catalogue) -> Iterator[GovernorError]:
    for name, expected in submission.request.if_match.items():
        kind, _, rest = name.partition("/")
        ref = DocumentRef(kind, rest)
        found = catalogue.entries[ref].version if catalogue.exists(ref) else 0
        if found != expected:
            reason = f"expected {_describe(expected)}, found {_describe(found)}; get it again and retry the change"
            detail = Detail(reason=reason, document=name)
            yield GovernorError(
                Kind.PRECONDITION, "version-mismatch", "a document has changed since it was read", [detail]
            )


def _describe(version: int) -> str:
    return f"version {version}" if version else "no such document"


def _unknown_deletions(submission: Submission, catalogue: Catalogue) -> Iterator[GovernorError]:
    for ref in submission.deletions:
        if not catalogue.exists(ref):
            yield _unknown(ref, "there is no such document to delete", "a document to delete does not exist")


def _unknown(ref: DocumentRef, reason: str, message: str) -> GovernorError:
    return GovernorError(Kind.NOT_FOUND, "document-unknown", message, [Detail(reason=reason, document=str(ref))])
