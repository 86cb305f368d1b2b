"""What a request for a change must satisfy by itself, before anything stored is looked at. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from governor.domain import variables
from governor.domain.dapr.validation import validate
from governor.domain.documents import Document, DocumentRef, Profile, ResourceRef, read_document, ref_of, resource_ref
from governor.errors import Detail, GovernorError, invalid
from governor.server.refusals import Refusals
from governor.values import paths
from governor.values.secret import SEALED_KEY
from governor.values.trees import Manifest, Tree
from governor.wire.rest import ChangeRequest
from governor.yamltext import Limits

LIMITS: Final = Limits()
"""The same for JSON and YAML: a document that one of them carries, the other can carry too."""

MESSAGE_CHARS: Final = 4096


class Submission(msgspec.Struct, frozen=True):
    """A request whose documents are well-formed; the trees are as written, with sensitive values in plain."""

    trees: dict[DocumentRef, Manifest]
    deletions: tuple[DocumentRef, ...]
    request: ChangeRequest


def check(request: ChangeRequest) -> Submission:
    """Refuse a request that is wrong in itself, naming as much of what is wrong as can be told."""
    refusals = Refusals()
    _check_message(request.message, refusals)
    trees: dict[DocumentRef, Manifest] = {}
    for tree in request.documents:
        with refusals.collecting():
            _check_size(tree)
            document = read_document(tree)
            _check_document(document, tree)
            _check_unique(ref_of(document), trees)
            trees[ref_of(document)] = tree
    for ref in request.deletions:
        if ref in trees:
            refusals.add(_invalid(ref, "document-duplicate", "is both put and deleted; ask for one of them"))
    refusals.refuse_if_any()
    return Submission(trees, request.deletions, request)


def _check_message(message: str, refusals: Refusals) -> None:
    if len(message) > MESSAGE_CHARS:
        refusals.add(invalid("message-long", f"the message of a change has at most {MESSAGE_CHARS} characters"))


def _check_size(tree: Tree) -> None:
    try:
        size = len(msgspec.json.encode(tree))
    except OverflowError as error:
        detail = Detail(reason="holds an integer that does not fit into 64 bits", document=_told_name(tree))
        raise invalid("number-large", "a document holds a number that is too large", [detail]) from error
    if size > LIMITS.document_bytes:
        reason = f"the document has {size} bytes, the limit is {LIMITS.document_bytes}: split it"
        raise invalid("document-large", "a document is too large", [Detail(reason=reason, document=_told_name(tree))])
    if _deeper_than(tree, LIMITS.depth):
        reason = f"the document is nested deeper than {LIMITS.depth} levels"
        raise invalid("document-deep", "a document is too deep", [Detail(reason=reason, document=_told_name(tree))])


def _told_name(tree: Tree) -> str:
    """The document's name as far as it can be read."""
    metadata = tree.get("metadata") if isinstance(tree, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{tree.get('kind')}/{name}" if isinstance(name, str) and isinstance(tree.get("kind"), str) else ""


def _deeper_than(tree: Tree, limit: int) -> bool:
    """Level by level and not by recursion, since this is what bounds recursion elsewhere."""
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
        raise _invalid(ref, "document-duplicate", "the document is there twice; remove one of them")


def _check_document(document: Document, tree: Manifest) -> None:
    problems = list(_reserved(tree, ()))
    if isinstance(document, Profile):
        problems.extend(_resource_problems(document.spec.resources))
    if problems:
        name = str(ref_of(document))
        details = [msgspec.structs.replace(problem, document=name) for problem in problems]
        raise invalid("document-invalid", f"{name} is not valid", details)


def _reserved(tree: Tree, path: paths.Path) -> Iterator[Detail]:
    """Places that use the key under which sealed values are stored."""
    if isinstance(tree, dict):
        if SEALED_KEY in tree:
            yield Detail(reason=f"the key {SEALED_KEY} is reserved", path=paths.render(path))
        for key, value in tree.items():
            yield from _reserved(value, (*path, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _reserved(value, (*path, index))


def _resource_problems(resources: Iterable[Manifest]) -> Iterator[Detail]:
    first_at: dict[ResourceRef, int] = {}
    for index, manifest in enumerate(resources):
        place: paths.Path = ("spec", "resources", index)
        problems = list(_identity_problems(manifest)) or validate(manifest, partial=True)
        for problem in problems:
            yield Detail(reason=problem.reason, path=paths.render((*place, *paths.parse(problem.path))))
        if problems:
            continue
        ref = resource_ref(manifest, "")
        if ref in first_at:
            reason = f"{ref.kind} {ref.name!r} is already spec.resources[{first_at[ref]}]; remove one of them"
            yield Detail(reason=reason, path=paths.render(place))
        first_at.setdefault(ref, index)


def _identity_problems(manifest: Manifest) -> Iterator[Detail]:
    """What layering needs of every resource, whatever its kind."""
    if not isinstance(manifest.get("kind"), str):
        yield Detail(reason="must be a string", path="kind")
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict):
        yield Detail(reason="must be a map with the resource's name", path="metadata")
        return
    if not isinstance(metadata.get("name"), str) or not metadata["name"]:
        yield Detail(reason="must be a string that is not empty", path="metadata.name")
    if not isinstance(metadata.get("namespace", ""), str):
        yield Detail(reason="must be a string", path="metadata.namespace")
    for key in ("name", "namespace"):
        if variables.names_variable(str(metadata.get(key, ""))):
            # Layers meet by these before variables are filled in, so two resources could become one afterwards.
            yield Detail(reason="cannot hold ${runtime...}; write one resource per runtime", path=f"metadata.{key}")


def _invalid(ref: DocumentRef, code: str, reason: str) -> GovernorError:
    return invalid(code, f"{ref}: {reason}", [Detail(reason=reason, document=str(ref))])
