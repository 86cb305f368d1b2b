"""Changes as text: the differences of each document and of the resources of runtimes. Pure."""

from collections.abc import Iterator

from governor.domain.changes import Change, ClassChange, DocumentChange
from governor.values.difftext import difference_lines
from governor.values.treediff import Difference, Operation


def change_lines(change: Change, *, all_runtimes: bool = False) -> list[str]:
    """Return each document and each class of runtimes, or each runtime, with its differences."""
    documents = (line for document in change.documents for line in _document_lines(document))
    if all_runtimes or not change.classes:
        named = ((f"runtime {each.runtime}", each.differences) for each in change.runtimes)
    else:
        named = ((_class_title(each), each.differences) for each in change.classes)
    return [*documents, *(line for title, differences in named for line in _effect_lines(title, differences))]


def document_title(document: DocumentChange) -> str:
    """Return one line on the effect of a change on a document."""
    if any(each.path == "kind" and each.operation is Operation.REMOVED for each in document.differences):
        return f"{document.document}: deleted (was version {document.old_version})"
    if document.old_version == 0:
        return f"{document.document}: created (version {document.new_version})"
    return f"{document.document}: changed (version {document.old_version} -> {document.new_version})"


def _document_lines(document: DocumentChange) -> Iterator[str]:
    yield document_title(document)
    yield from _indented(document.differences)


def _class_title(affected: ClassChange) -> str:
    names, others = ", ".join(affected.examples), affected.count - len(affected.examples)
    if affected.count == 1:
        return f"runtime {names}"
    return f"{affected.count} runtimes ({names}{f' and {others} more' if others else ''})"


def _effect_lines(title: str, differences: tuple[Difference, ...]) -> Iterator[str]:
    if differences:
        yield f"{title}: resources change"
        yield from _indented(differences)
    else:
        yield f"{title}: new delivery with the same resources"


def _indented(differences: tuple[Difference, ...]) -> Iterator[str]:
    for difference in differences:
        yield from (f"  {line}" for line in difference_lines(difference))
