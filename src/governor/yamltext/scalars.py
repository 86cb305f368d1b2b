"""Values of YAML scalars: the core schema of YAML 1.2, restricted to what JSON can represent."""

import math
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import yaml

Scalar: TypeAlias = bool | int | float | str | None

TAG: Final = "tag:yaml.org,2002:"

_WORDS: Final[Mapping[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
_LONGEST_INTEGER: Final = len("0o") + 22
_TYPES: Final[Mapping[str, type]] = {
    f"{TAG}null": type(None),
    f"{TAG}bool": bool,
    f"{TAG}int": int,
    f"{TAG}float": float,
}


def scalar(event: yaml.ScalarEvent) -> Scalar:
    """Return the value of a scalar; raise ValueError with the reason if it has none."""
    text: str = event.value
    if "\0" in text:
        raise ValueError("the string contains a NUL character: remove it")
    if event.tag is None:
        return _resolve(text) if event.implicit[0] else text
    return text if event.tag in (f"{TAG}str", "!") else _tagged(text, event.tag)


def short_tag(tag: str) -> str:
    """Return a tag in its short form, such as ``!!str``."""
    return f"!!{tag.removeprefix(TAG)}" if tag.startswith(TAG) else tag


def _tagged(text: str, tag: str) -> Scalar:
    expected = _TYPES.get(tag)
    if expected is None:
        raise ValueError(f"the tag {short_tag(tag)} is not supported: remove it")
    value = _resolve(text)
    if expected is float and type(value) is int:
        return float(value)
    if type(value) is not expected:
        raise ValueError(f"the value does not match its tag {short_tag(tag)}")
    return value


def _resolve(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("JSON has no infinity and no NaN: quote it if it is text")
    return _float(text) if _FLOAT.fullmatch(text) else text


def _integer(text: str) -> int:
    # YAML 1.1 reads 0777 as octal, YAML 1.2 as decimal, and a password would lose its zero.
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError("a number with a leading zero is ambiguous: quote it, or write 0o for octal")
    number = int(text, 0) if len(text) <= _LONGEST_INTEGER else _INTEGERS.stop
    if number not in _INTEGERS:
        raise ValueError("the integer does not fit into 64 bits: quote it if it is text")
    return number


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("the number is too large: quote it if it is text")
    return number
