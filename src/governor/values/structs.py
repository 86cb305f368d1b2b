"""Readable messages for msgspec's validation errors: the full path, and what must be there.

Instead of a regular expression a message shows the ``description`` of the field's ``msgspec.Meta``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from governor.values.paths import Path
from governor.values.suggestions import suggestion
from governor.values.trees import Tree, leaf_at

_ERROR: Final = re.compile(r"(?P<reason>.*?)(?: - at `(?:key` in `)?\$(?P<place>.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<field>[\w-]+)|\[(?P<index>\d+)\]|(?P<entry>\[\.\.\.\])")
_FIELD: Final = re.compile(r"Object (?P<what>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)
_TYPE: Final = re.compile(r"Expected `(?P<expected>[^`]+)`, got `(?P<found>[^`]+)`")
_RANGE: Final = re.compile(r"Expected `(?P<type>\w+)` (?P<length>of length )?(?P<operator>[<>]=?) (?P<limit>\S+)")
_PATTERN: Final = re.compile(r"Expected `str` matching regex '?(?P<pattern>.*?)'?", re.DOTALL)
_TYPE_NAMES: Final[Mapping[str, str]] = {
    "object": "a map",
    "array": "a list",
    "str": "a string",
    "bool": "a boolean",
    "int": "an integer",
    "float": "a number",
    "datetime": "a time with a time zone, such as 2026-01-31T22:00:00Z",
}
_INVALID_TIMES: Final = frozenset({"Invalid RFC3339 encoded datetime", "Expected `datetime` with a timezone component"})
_OPERATORS: Final[Mapping[str, str]] = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


def explain(error: msgspec.ValidationError, expected: type[Any], tree: Tree) -> tuple[Path, str]:
    """Return path and reason of an error from ``msgspec.convert(tree, expected)``."""
    error_match = _ERROR.fullmatch(str(error))
    reason, place = (error_match["reason"], error_match["place"] or "") if error_match else (str(error), "")
    path = _path(place, tree)
    node = _node(expected, path)
    if field := _FIELD.fullmatch(reason):
        missing = field["what"] == "missing required"
        return (*path, field["name"]), "is missing" if missing else _unknown_field(field["name"], node)
    return path, _describe(reason, node)


def _path(place: str, tree: Tree) -> Path:
    path: Path = ()
    for step in _STEP.finditer(place):
        if step["field"] is not None:
            path = (*path, step["field"])
        elif step["index"] is not None:
            path = (*path, int(step["index"]))
        else:
            path = (*path, *_wrong_entry(leaf_at(tree, path)))
    return path


def _wrong_entry(entries: Tree) -> Iterable[str]:
    """Return the key of the first value that is not a string: msgspec does not name the entry of a map."""
    wrong = (key for key, value in entries.items() if not isinstance(value, str)) if isinstance(entries, dict) else ()
    return next(((key,) for key in wrong), ())


def _node(expected: type[Any], path: Path) -> Any:
    """Return the type that msgspec expects at a path, or None for any type."""
    node: Any = msgspec.inspect.type_info(expected)
    for step in path:
        if isinstance(step, int):
            node = getattr(node, "item_type", None)
        else:
            fields = (field.type for field in getattr(node, "fields", ()) if field.encode_name == step)
            node = next(fields, getattr(node, "value_type", None))
        node = _present(node)
    return node


def _present(node: Any) -> Any:
    """Return the type of a value that may be null, if there is only one."""
    types = [each for each in getattr(node, "types", ()) if not isinstance(each, msgspec.inspect.NoneType)]
    return types[0] if len(types) == 1 else node


def _describe(reason: str, node: Any) -> str:
    for alternative in _alternatives(node):
        if isinstance(alternative, msgspec.inspect.EnumType) and reason.startswith("Invalid enum value"):
            return f"must be {_either(str(choice.value) for choice in alternative.cls)}"
        if isinstance(alternative, msgspec.inspect.LiteralType) and reason.startswith("Invalid enum value"):
            return f"must be {_either(map(str, alternative.values))}"
        if isinstance(alternative, msgspec.inspect.Metadata) and " matching regex " in reason:
            return f"must be {(alternative.extra_json_schema or {})['description']}"
    if types := _TYPE.fullmatch(reason):
        return f"must be {_type_names(types['expected'])}, not {_TYPE_NAMES.get(types['found'], types['found'])}"
    if pattern := _PATTERN.fullmatch(reason):
        return f"must match {pattern['pattern']}"
    if reason in _INVALID_TIMES:
        return f"must be {_TYPE_NAMES['datetime']}"
    if limits := _RANGE.fullmatch(reason):
        return _out_of_range(**limits.groupdict())
    return reason


def _alternatives(node: Any) -> Iterable[Any]:
    """Yield the types of a union, and the type inside each ``Annotated``."""
    for each in getattr(node, "types", (node,)):
        yield each
        if isinstance(each, msgspec.inspect.Metadata):
            yield from _alternatives(each.type)


def _type_names(expected: str) -> str:
    """Return alternatives such as ``str | null`` in words, without null, which is the same as an absent field."""
    return _either(_TYPE_NAMES.get(name, name) for name in expected.split(" | ") if name != "null")


def _out_of_range(type: str, length: str | None, operator: str, limit: str) -> str:  # noqa: A002 - msgspec's word
    if not length:
        return f"must be {_OPERATORS[operator]} {limit}"
    if (operator, limit) == (">=", "1"):
        return "must not be empty"
    unit = {"str": "characters", "array": "items"}.get(type, "entries")
    return f"must have {_OPERATORS[operator]} {limit} {unit}"


def _either(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _unknown_field(name: str, node: Any) -> str:
    tag = getattr(node, "tag_field", None)
    fields = [field.encode_name for field in getattr(node, "fields", ())]
    return f"unknown field; {suggestion(name, [tag, *fields] if tag else fields, 'known fields')}"
