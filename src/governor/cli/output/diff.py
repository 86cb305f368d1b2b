"""Changes as text: the differences of each document and of each runtime's resources. Pure."""

from collections.abc import Iterator

from governor.domain.changes import Change, DocumentChange, RuntimeChange
from governor.values.difftext import difference_lines
from governor.values.treediff import Difference, Operation


def change_lines(change: Change) -> list[str]:
    """Return each document and each runtime with its differences; empty if nothing differs."""
    documents = (line for document in change.documents for line in _document_lines(document))
    runtimes = (line for runtime in change.runtimes for line in _runtime_lines(runtime))
    return [*documents, *runtimes]


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


def _runtime_lines(runtime: RuntimeChange) -> Iterator[str]:
    if runtime.differences:
        yield f"runtime {runtime.runtime}: resources change"
        yield from _indented(runtime.differences)
    else:
        yield f"runtime {runtime.runtime}: new delivery with the same resources"


def _indented(differences: tuple[Difference, ...]) -> Iterator[str]:
    for difference in differences:
        yield from (f"  {line}" for line in difference_lines(difference))
