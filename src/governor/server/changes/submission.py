"""Submission checks: what a change request must satisfy independently of the stored state. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from governor.domain.dapr.validation import validate
from governor.domain.documents import Document, DocumentRef, Profile, name_of, read_document, ref_of
from governor.domain.variables import unknown_variables
from governor.domain.windows import Window, is_time_zone
from governor.errors import Detail, GovernorError, invalid
from governor.server.changes.error_list import ErrorList
from governor.values import paths
from governor.values.secret import SEALED_KEY
from governor.values.trees import Manifest, Tree
from governor.wire.rest import ChangeRequest
from governor.yamltext import Limits

LIMITS: Final = Limits()
"""The limits of YAML text, also applied to JSON so that either can carry every document."""

MAX_MESSAGE_CHARS: Final = 4096
_INT64_OR_UINT64: Final = range(-(1 << 63), 1 << 64)


class Submission(msgspec.Struct, frozen=True):
    """A request whose documents are well-formed; the trees are as written, with sensitive values in plain text."""

    trees: dict[DocumentRef, Manifest]
    deletions: tuple[DocumentRef, ...]
    request: ChangeRequest


def check(request: ChangeRequest) -> Submission:
    """Return the request with its documents by reference, or raise everything that is wrong in it."""
    errors = ErrorList()
    _check_message(request.message, errors)
    trees: dict[DocumentRef, Manifest] = {}
    for tree in request.documents:
        with errors.collect():
            _check_size(tree)
            document = read_document(tree)
            _check_document(document, tree)
            _check_unique(ref_of(document), trees)
            trees[ref_of(document)] = tree
    for ref in request.deletions:
        if ref in trees:
            errors.add(_invalid(ref, "document-duplicate", "is both put and deleted; request only one of them"))
    if request.rollback is not None and (request.documents or request.deletions):
        errors.add(invalid("rollback-mixed", "a rollback cannot be combined with documents or deletions; omit them"))
    errors.raise_if_any()
    return Submission(trees, request.deletions, request)


def _check_message(message: str, errors: ErrorList) -> None:
    if len(message) > MAX_MESSAGE_CHARS:
        errors.add(invalid("message-long", f"the message of a change has at most {MAX_MESSAGE_CHARS} characters"))


def _check_size(tree: Tree) -> None:
    size = len(msgspec.json.encode(tree))
    if size > LIMITS.document_bytes:
        reason = f"the document has {size} bytes, the limit is {LIMITS.document_bytes}: split it"
        raise invalid("document-large", "a document is too large", [Detail(reason=reason, document=name_of(tree))])
    if _deeper_than(tree, LIMITS.depth):
        reason = f"the document is nested deeper than {LIMITS.depth} levels"
        raise invalid("document-deep", "a document is too deep", [Detail(reason=reason, document=name_of(tree))])


def _deeper_than(tree: Tree, limit: int) -> bool:
    # Iterative, because this check is what bounds the recursion elsewhere.
    level = [tree]
    for _ in range(limit + 1):
        level = [child for value in level for child in _children(value)]
        if not level:
            return False
    return True


def _children(value: Tree) -> Iterable[Tree]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_unique(ref: DocumentRef, known: dict[DocumentRef, Manifest]) -> None:
    if ref in known:
        raise _invalid(ref, "document-duplicate", "the document occurs twice; remove one of them")


def _check_document(document: Document, tree: Manifest) -> None:
    problems = list(_unstorable(tree, ()))
    if isinstance(document, Profile):
        problems.extend(_resource_problems(document.spec.resources))
    else:
        problems.extend(_window_problems(document.spec.windows))
    if problems:
        name = str(ref_of(document))
        details = [msgspec.structs.replace(problem, document=name) for problem in problems]
        raise invalid("document-invalid", f"{name} is not valid", details)


def _unstorable(tree: Tree, path: paths.Path) -> Iterator[Detail]:
    """Yield the uses of the key reserved for sealed values, and the integers that YAML text cannot represent."""
    if isinstance(tree, dict):
        if SEALED_KEY in tree:
            yield Detail(reason=f"the key {SEALED_KEY} is reserved", path=paths.render(path))
        for key, value in tree.items():
            yield from _unstorable(value, (*path, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _unstorable(value, (*path, index))
    elif isinstance(tree, int) and tree not in _INT64_OR_UINT64:
        yield Detail(reason="the integer does not fit into 64 bits", path=paths.render(path))


def _resource_problems(resources: Iterable[Manifest]) -> Iterator[Detail]:
    for index, manifest in enumerate(resources):
        for problem in (*validate(manifest, partial=True), *unknown_variables(manifest)):
            place = ("spec", "resources", index, *paths.parse(problem.path))
            yield Detail(reason=problem.reason, path=paths.render(place))


def _window_problems(windows: Iterable[Window]) -> Iterator[Detail]:
    """Yield unknown time zones. Stored documents are not checked: the machine's time zones may change."""
    for index, window in enumerate(windows):
        if not is_time_zone(window.time_zone):
            reason = f"unknown time zone {window.time_zone!r}; write a name such as Europe/Berlin or UTC"
            yield Detail(reason=reason, path=paths.render(("spec", "windows", index, "timeZone")))


def _invalid(ref: DocumentRef, code: str, reason: str) -> GovernorError:
    return invalid(code, f"{ref}: {reason}", [Detail(reason=reason, document=str(ref))])
