"""Differences as lines of text."""

from typing import Any, Final

import msgspec

from governor.values.treediff import Difference, Operation
from governor.yamltext import dump

_SIGN: Final = {Operation.ADDED: "+", Operation.REMOVED: "-", Operation.CHANGED: "~", Operation.REORDERED: "~"}


def difference_lines(difference: Difference) -> list[str]:
    """Return one difference: scalars on its line, maps and lists as YAML below it."""
    sign, path = _SIGN[difference.operation], difference.path or "(all)"
    old, new = difference.old, difference.new
    if difference.operation is Operation.REORDERED:
        return [f"{sign} {path}: in another order: {', '.join(old)} -> {', '.join(new)}"]
    if difference.operation is Operation.CHANGED:
        if _is_scalar(old) and _is_scalar(new):
            return [f"{sign} {path}: {_scalar_text(old)} -> {_scalar_text(new)}"]
        return [f"{sign} {path}:", *_block("-", old), *_block("+", new)]
    value = new if difference.operation is Operation.ADDED else old
    return [f"{sign} {path}: {_scalar_text(value)}"] if _is_scalar(value) else [f"{sign} {path}:", *_block(sign, value)]


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, (dict, list)) or not value


def _scalar_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _block(sign: str, value: Any) -> list[str]:
    return [f"{sign}   {line}" for line in dump(value).splitlines()]
