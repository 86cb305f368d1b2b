"""Changes as text: what happened to each document and what follows for each runtime. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from governor.domain.changes import Change, DocumentChange, RuntimeChange
from governor.values.treediff import Difference, Operation
from governor.yamltext import dump

_SIGN: Final = {Operation.ADDED: "+", Operation.REMOVED: "-", Operation.CHANGED: "~"}


def change_lines(change: Change) -> list[str]:
    """Each document and each runtime with its differences; nothing when nothing differs."""
    documents = (line for document in change.documents for line in _document_lines(document))
    runtimes = (line for runtime in change.runtimes for line in _runtime_lines(runtime))
    return [*documents, *runtimes]


def document_title(document: DocumentChange) -> str:
    """One line that says what becomes of a document."""
    if any(each.path == "kind" and each.operation is Operation.REMOVED for each in document.differences):
        return f"{document.document}: deleted (was version {document.old_version})"
    if document.old_version == 0:
        return f"{document.document}: created (version {document.new_version})"
    return f"{document.document}: changed (version {document.old_version} -> {document.new_version})"


def difference_lines(difference: Difference) -> list[str]:
    """One difference: short values on its line, larger ones as YAML below it."""
    sign, path = _SIGN[difference.operation], difference.path or "(all)"
    old, new = difference.old, difference.new
    if difference.operation is Operation.CHANGED:
        if _is_short(old) and _is_short(new):
            return [f"{sign} {path}: {_short(old)} -> {_short(new)}"]
        return [f"{sign} {path}:", *_block("-", old), *_block("+", new)]
    value = new if difference.operation is Operation.ADDED else old
    return [f"{sign} {path}: {_short(value)}"] if _is_short(value) else [f"{sign} {path}:", *_block(sign, value)]


def _document_lines(document: DocumentChange) -> Iterator[str]:
    yield document_title(document)
    yield from _indented(document.differences)


def _runtime_lines(runtime: RuntimeChange) -> Iterator[str]:
    if runtime.differences:
        yield f"runtime {runtime.runtime}: its resources change"
        yield from _indented(runtime.differences)
    else:
        yield f"runtime {runtime.runtime}: gets a delivery with the same resources"


def _indented(differences: tuple[Difference, ...]) -> Iterator[str]:
    for difference in differences:
        yield from (f"  {line}" for line in difference_lines(difference))


def _is_short(value: Any) -> bool:
    return not isinstance(value, (dict, list)) or not value


def _short(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _block(sign: str, value: Any) -> list[str]:
    return [f"{sign}   {line}" for line in dump(value).splitlines()]
