"""YAML as Helm reads it: the scalars of Go's YAML library, which are neither those of YAML 1.1 nor of 1.2. Pure."""

import re
from typing import Any, Final

import yaml

from governor.errors import invalid

_TRUE: Final = frozenset(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE: Final = frozenset(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"))
_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_PLAIN: Final = "!plain"
_BITS: Final = range(-(1 << 63), 1 << 64)


class _Loader(yaml.CSafeLoader):
    """A loader that gives every plain scalar without a tag the tag of ``_PLAIN``."""

    yaml_implicit_resolvers: Any = {  # noqa: RUF012 - of PyYAML
        "<": [("tag:yaml.org,2002:merge", re.compile("<<$"))],
        None: [(_PLAIN, re.compile(""))],
    }


def _scalar(_: Any, node: yaml.ScalarNode) -> Any:
    return resolve(node.value)


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[str, Any]:
    loader.flatten_mapping(node)
    return {
        _key(loader.construct_object(key, deep=True)): loader.construct_object(value, deep=True)
        for key, value in node.value
    }


_Loader.add_constructor(_PLAIN, _scalar)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load_all(text: str, place: str) -> list[Any]:
    """Return the documents of a text; an error names the place, and no content, which may be secret."""
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, TypeError) as error:
        raise invalid("yaml", f"{place} is not valid YAML: correct the template") from error


def resolve(text: str) -> Any:
    """Return the value of a plain scalar."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text in _NULL:
        return None
    plain = text.replace("_", "")
    if text[0] in "+-.0123456789":
        if _INTEGER.fullmatch(plain) and (number := _integer(plain)) in _BITS:
            return number
        if _FLOAT.fullmatch(plain):
            return _float(plain)
    return text


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    base = 8 if re.fullmatch("0[0-7]+", digits) else 0
    return int(text, base)


def _float(text: str) -> float | int:
    """Return a number as JSON of Go writes it: without a fraction, it is an integer."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 1e21 else number


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if not isinstance(key, str | int | float):
        raise TypeError("a key is neither text nor a number")
    return str(key)
