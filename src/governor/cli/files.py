"""Documents from files, directories and standard input, with everything that is wrong in them told at once.

Only what needs no server is refused here; what a document may say is the server's decision.
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
_MOST_BYTES: Final = Limits().text_bytes + 1
"""One more than may be, so that what is too large is noticed without reading all of it."""


def read(sources: Sequence[str]) -> tuple[Parsed, ...]:
    """All documents of files, directories and ``-``, in this order; refuses them all if one of them is wrong."""
    parsed: list[Parsed] = []
    problems: list[Detail] = []
    for source in dict.fromkeys(_files(sources)):
        try:
            parsed.extend(load(_text(source), "stdin" if source == STDIN else source))
        except GovernorError as error:
            problems.extend(error.details)
    problems.extend(_misplaced(parsed))
    if problems:
        raise invalid("files-invalid", "the documents cannot be read; nothing was sent", problems)
    if not parsed:
        raise invalid("files-empty", f"there are no documents in {', '.join(sources)}; nothing was sent")
    return tuple(parsed)


def _files(sources: Iterable[str]) -> Iterator[str]:
    for source in sources:
        if source != STDIN and Path(source).is_dir():
            yield from _below(Path(source))
        else:
            yield source


def _below(directory: Path) -> list[str]:
    """Files for people, sorted; what is hidden (a repository's own files, editors' copies) is not meant."""
    found = (path for path in directory.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return sorted(str(path) for path in found if not _hidden(path.relative_to(directory)))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _text(source: str) -> bytes:
    if source == STDIN:
        return sys.stdin.buffer.read(_MOST_BYTES)
    try:
        with Path(source).open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        reason = f"cannot read it: {error.strerror or error}"
        raise invalid("file-unreadable", f"cannot read {source}", [Detail(reason, file=source)]) from error


def _misplaced(parsed: Iterable[Parsed]) -> Iterator[Detail]:
    """Documents that cannot be told apart from others, or are none."""
    first: dict[DocumentRef, Parsed] = {}
    for item in parsed:
        if not isinstance(item.value, dict):
            reason = "a document is a map with apiVersion, kind, metadata and spec"
            yield Detail(reason, file=item.source, line=item.line)
            continue
        ref = _ref(item.value)
        other = first.setdefault(ref, item) if ref else item
        if other is not item:
            reason = f"the same document is also in {other.source}:{other.line}; keep one of them"
            yield Detail(reason, file=item.source, line=item.line, document=str(ref))


def _ref(document: Mapping[str, object]) -> DocumentRef | None:
    metadata = document.get("metadata")
    kind, name = document.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None
    return DocumentRef(kind, name) if isinstance(kind, str) and isinstance(name, str) else None
