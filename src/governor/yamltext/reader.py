"""Parses YAML text into documents: checks size and characters first, and locates every error."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import msgspec
import yaml

from governor.errors import Detail, invalid
from governor.yamltext.tree import Composer, Node, Path, TooLargeError, Value

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$/-]*")
# Characters outside YAML's printable set; a byte order mark is allowed only as the first character.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
# A line that starts with one of these ends a document, even inside a scalar.
_BOUNDARY: Final = re.compile(rb"^(?:---|\.\.\.)(?=\s|\Z)", re.MULTILINE)
_SURROGATES: Final = re.compile(
    r"(?<!\\)(?P<before>(?:\\\\)*)(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_HINTS: Final = {
    "the character '\\t'": "indent with spaces, not with tabs",
    "tab character": "indent with spaces, not with tabs",
    "cannot start any token": "quote a value that begins with it",
    "mapping values are not allowed": "check the indentation, and quote a value that contains a colon and a space",
}
"""What to do about a syntax error, by a part of its description."""


class Limits(msgspec.Struct, frozen=True):
    """Limits on size, depth and number of nodes."""

    text_bytes: int = 16 * 1024 * 1024
    document_bytes: int = 1024 * 1024
    depth: int = 64
    nodes: int = 500_000


class Parsed(msgspec.Struct, frozen=True):
    """One document of a text."""

    value: Value
    source: str
    line: int
    _root: Node

    def line_of(self, path: Path) -> int:
        """Return the line of ``path``, or of its nearest existing ancestor."""
        line, node = self.line, self._root
        for step in path:
            child = node.child(step)
            if child is None:
                break
            line, node = child.line, child.node
        return line


def load(text: str | bytes, source: str, *, limits: Limits = Limits()) -> list[Parsed]:  # noqa: B008 - frozen
    """Return the non-empty documents of ``text``; ``source`` names it in errors."""
    checked = _join_surrogates(_decode(text, source, limits))
    composer = Composer(depth=limits.depth, nodes=limits.nodes, document_chars=limits.document_bytes)
    try:
        for event in yaml.parse(checked, Loader=yaml.CSafeLoader):
            _compose(composer, event, source)
    except yaml.MarkedYAMLError as error:
        # At the end of the text the parser reports a line after the last one.
        line = min(_line(error.problem_mark or error.context_mark), checked.count("\n") + 1)
        _reject(source, line, "syntax", f"not YAML: {_syntax(error, checked)}", error)
    except yaml.YAMLError as error:
        _reject(source, 1, "syntax", "not YAML", error)
    return [Parsed(root.plain(), source, root.line, root) for root in composer.roots]


def _compose(composer: Composer, event: yaml.Event, source: str) -> None:
    line = _line(event.start_mark)
    try:
        composer.feed(event, line)
    except ValueError as error:
        code = "size" if isinstance(error, TooLargeError) else "value"
        _reject(source, line, code, str(error), error, composer.path)


def _syntax(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return what the parser reports, where an unfinished part begins, and what to do about the usual mistakes."""
    is_long = _is_before(error.context_mark, error.problem_mark)
    begin = f"that begins on line {_line(error.context_mark)}" if is_long else ""
    problem = " ".join(part for part in (error.context, begin, error.problem) if part)
    if error.problem_mark and "cannot start any token" in problem:
        index = error.problem_mark.index
        problem = problem.replace("found character", f"found the character {text[index : index + 1]!r}")
    hint = next((hint for sign, hint in _HINTS.items() if sign in problem), "")
    return f"{problem}: {hint}" if hint else problem


def _is_before(begin: Any, end: Any) -> bool:
    return begin is not None and end is not None and begin.line < end.line


def _line(mark: Any) -> int:  # the C parser has its own class of marks
    return mark.line + 1 if mark else 1


def _decode(text: str | bytes, source: str, limits: Limits) -> str:
    if len(text) > limits.text_bytes:
        _reject(source, 1, "size", f"the text has {len(text)} bytes, the limit is {limits.text_bytes}: split it")
    try:
        data = text.encode() if isinstance(text, str) else text
        decoded = data.decode("utf-8-sig")
    except UnicodeEncodeError as error:
        line = error.object.count("\n", 0, error.start) + 1
        _reject(source, line, "encoding", "contains half of a surrogate pair: remove it", error)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        _reject(source, line, "encoding", f"byte {error.start} is not UTF-8: save it as UTF-8", error)
    _check_document_sizes(data, source, limits)
    found = _UNPRINTABLE.search(decoded)
    if found:
        line = decoded.count("\n", 0, found.start()) + 1
        _reject(source, line, "encoding", f"contains the control character U+{ord(found[0]):04X}: remove it")
    return decoded


def _check_document_sizes(data: bytes, source: str, limits: Limits) -> None:
    for start, end in _document_spans(data):
        size = end - start
        if size > limits.document_bytes:
            line = data.count(b"\n", 0, start) + 1
            reason = f"the document has {size} bytes, the limit is {limits.document_bytes}: split it"
            _reject(source, line, "size", reason)


def _document_spans(data: bytes) -> Iterator[tuple[int, int]]:
    start = 0
    for boundary in _BOUNDARY.finditer(data):
        yield start, boundary.start()
        start = boundary.start()
    yield start, len(data)


def _join_surrogates(text: str) -> str:
    """Join surrogate pairs: JSON escapes a character above U+FFFF as two, which YAML does not support."""
    if not _SURROGATES.search(text):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _SURROGATES.sub(lambda match: match["before"] + json.loads(f'"{match["pair"]}"'), text)


def path_text(path: Path) -> str:
    """Return ``("spec", "metadata", 1)`` as ``spec.metadata[1]``, as ``governor.values.paths`` does one layer above."""
    return "".join(map(_step_text, path)).removeprefix(".")


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_KEY.fullmatch(step) else f"[{json.dumps(step, ensure_ascii=False)}]"


def _reject(
    source: str, line: int, code: str, reason: str, cause: Exception | None = None, path: Path = ()
) -> NoReturn:
    detail = Detail(file=source, line=line, path=path_text(path), reason=reason)
    raise invalid(f"yaml-{code}", f"{source} cannot be read", [detail]) from cause
