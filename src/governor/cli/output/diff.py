"""Changes as text: the differences of each document and of each runtime's resources. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from governor.domain.changes import Change, DocumentChange, RuntimeChange
from governor.values.treediff import Difference, Operation
from governor.yamltext import dump

_SIGN: Final = {Operation.ADDED: "+", Operation.REMOVED: "-", Operation.CHANGED: "~"}


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


def difference_lines(difference: Difference) -> list[str]:
    """Return one difference: scalars on its line, maps and lists as YAML below it."""
    sign, path = _SIGN[difference.operation], difference.path or "(all)"
    old, new = difference.old, difference.new
    if difference.operation is Operation.CHANGED:
        if _is_scalar(old) and _is_scalar(new):
            return [f"{sign} {path}: {_scalar_text(old)} -> {_scalar_text(new)}"]
        return [f"{sign} {path}:", *_block("-", old), *_block("+", new)]
    value = new if difference.operation is Operation.ADDED else old
    return [f"{sign} {path}: {_scalar_text(value)}"] if _is_scalar(value) else [f"{sign} {path}:", *_block(sign, value)]


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


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, (dict, list)) or not value


def _scalar_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _block(sign: str, value: Any) -> list[str]:
    return [f"{sign}   {line}" for line in dump(value).splitlines()]
