"""Documents from files, directories and standard input; all problems are reported at once.

Only what can be checked without the server is rejected here; the server decides which documents are valid.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from governor.domain.documents import DocumentRef
from governor.errors import Detail, GovernorError, invalid
from governor.yamltext import Limits, Parsed, load

STDIN: Final = "-"
SUFFIXES: Final = (".yaml", ".yml", ".json")
_MAX_READ_BYTES: Final = Limits().text_bytes + 1
"""One byte beyond the limit, so that a file that is too large is detected without reading all of it."""


def read(sources: Sequence[str]) -> tuple[Parsed, ...]:
    """Read all documents of files, directories and ``-`` in this order; reject them all if one of them is wrong."""
    parsed: list[Parsed] = []
    problems: list[Detail] = []
    for source in dict.fromkeys(_files(sources)):
        try:
            parsed.extend(load(_content(source), "stdin" if source == STDIN else source))
        except GovernorError as error:
            problems.extend(error.details)
    problems.extend(_document_problems(parsed))
    if problems:
        raise invalid("files-invalid", "the documents cannot be read; nothing was sent", problems)
    if not parsed:
        raise invalid("files-empty", f"no documents found in {', '.join(sources)}; nothing was sent")
    return tuple(parsed)


def _files(sources: Iterable[str]) -> Iterator[str]:
    for source in sources:
        if source != STDIN and Path(source).is_dir():
            yield from _files_below(Path(source))
        else:
            yield source


def _files_below(directory: Path) -> list[str]:
    """Return the document files below a directory, sorted; hidden ones (``.git``, editors' copies) are skipped."""
    found = (path for path in directory.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return sorted(str(path) for path in found if not _is_hidden(path.relative_to(directory)))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _content(source: str) -> bytes:
    if source == STDIN:
        return sys.stdin.buffer.read(_MAX_READ_BYTES)
    try:
        with Path(source).open("rb") as file:
            return file.read(_MAX_READ_BYTES)
    except OSError as error:
        reason = f"cannot read the file: {error.strerror or error}"
        raise invalid("file-unreadable", f"cannot read {source}", [Detail(reason, file=source)]) from error


def _document_problems(parsed: Iterable[Parsed]) -> Iterator[Detail]:
    """Yield a detail for each value that is not a map and for each duplicate."""
    first: dict[DocumentRef, Parsed] = {}
    for item in parsed:
        if not isinstance(item.value, dict):
            reason = "a document must be a map with apiVersion, kind, metadata and spec"
            yield Detail(reason, file=item.source, line=item.line)
            continue
        ref = _ref(item.value)
        other = first.setdefault(ref, item) if ref else item
        if other is not item:
            reason = f"duplicate of the document at {other.source}:{other.line}; remove one of them"
            yield Detail(reason, file=item.source, line=item.line, document=str(ref))


def _ref(document: Mapping[str, object]) -> DocumentRef | None:
    metadata = document.get("metadata")
    kind, name = document.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None
    return DocumentRef(kind, name) if isinstance(kind, str) and isinstance(name, str) else None
