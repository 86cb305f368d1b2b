"""How a place inside a document is written: ``spec.metadata[1].value``."""

import json
import re
from typing import Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_STEP: Final = re.compile(rf'\[(?P<index>[0-9]+)\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]|\.?(?P<word>{_WORD.pattern})')


def path_text(path: Path) -> str:
    """``("spec", "metadata", 1)`` as ``spec.metadata[1]``, the form in which a Detail names a place."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _WORD.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step)}]"
    return text


def path_of(text: str) -> Path:
    """The inverse of ``path_text``."""
    return tuple(_step(match) for match in _STEP.finditer(text))


def _step(match: re.Match[str]) -> str | int:
    if match["index"]:
        return int(match["index"])
    return str(json.loads(match["quoted"])) if match["quoted"] else match["word"]
