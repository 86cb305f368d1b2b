"""Which documents get a new version by a change, checked against the versions that are stored. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from governor.domain.documents import DocumentRef
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.server.changes.problems import Refusals
from governor.server.changes.sensitive import seal_document
from governor.server.changes.submission import Submission
from governor.server.store.documents import DocumentVersion
from governor.server.store.sealer import Sealer
from governor.values.digest import digest
from governor.values.trees import Manifest

Stored = Mapping[DocumentRef, DocumentVersion]


def new_versions(
    submission: Submission, stored: Stored, sealer: Sealer, *, revision: int
) -> tuple[DocumentVersion, ...]:
    """New versions of the documents that really change, sealed; refuses what does not fit to what is stored."""
    refusals = Refusals()
    for error in (*_wrong_versions(submission, stored), *_unknown_deletions(submission, stored)):
        refusals.add(error)
    trees: dict[DocumentRef, Manifest | None] = dict.fromkeys(submission.deletions)
    for ref, tree in submission.trees.items():
        trees[ref], problems = seal_document(tree, _tree(stored, ref), sealer)
        if problems:
            details = [Detail(reason=problem.reason, path=problem.path, document=str(ref)) for problem in problems]
            refusals.add(invalid("sensitive-value", f"{ref} is not valid", details))
    refusals.refuse_if_any()
    return tuple(_changed(trees, stored, revision))


def restored_versions(
    submission: Submission, stored: Stored, then: Stored, meant: Iterable[DocumentRef], *, revision: int
) -> tuple[DocumentVersion, ...]:
    """New versions that make documents what they were ``then``: those that are meant, or all if none is named."""
    refusals = Refusals()
    for error in _wrong_versions(submission, stored):
        refusals.add(error)
    named = tuple(meant)
    for ref in named:
        if ref not in stored:
            refusals.add(_unknown(ref, "there never was such a document", "a document to restore does not exist"))
    refusals.refuse_if_any()
    return tuple(_changed({ref: _tree(then, ref) for ref in named or stored}, stored, revision))


def revision_digest(stored: Stored, versions: Iterable[DocumentVersion]) -> str:
    """The digest of all documents as they are once these versions are stored too."""
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


def _wrong_versions(submission: Submission, stored: Stored) -> Iterator[GovernorError]:
    versions = {str(ref): version.version for ref, version in stored.items() if version.tree is not None}
    for name, wanted in submission.request.if_match.items():
        found = versions.get(name, 0)
        if found != wanted:
            reason = f"expected {_told(wanted)}, found {_told(found)}; read it again and repeat the change"
            detail = Detail(reason=reason, document=name)
            yield GovernorError(Kind.PRECONDITION, "version-mismatch", "a document was changed meanwhile", [detail])


def _told(version: int) -> str:
    return f"version {version}" if version else "no such document"


def _unknown_deletions(submission: Submission, stored: Stored) -> Iterator[GovernorError]:
    for ref in submission.deletions:
        if _tree(stored, ref) is None:
            yield _unknown(ref, "there is no such document to delete", "a document to delete does not exist")


def _unknown(ref: DocumentRef, reason: str, message: str) -> GovernorError:
    return GovernorError(Kind.NOT_FOUND, "document-unknown", message, [Detail(reason=reason, document=str(ref))])
