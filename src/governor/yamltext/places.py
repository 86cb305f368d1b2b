"""Places inside a document, written as ``governor.values.paths`` writes them; that layer lies above this one."""

import json
import re
from typing import Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

_PLAIN: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$/-]*")


def path_text(path: Path) -> str:
    """``("spec", "metadata", 1)`` as ``spec.metadata[1]``."""
    return "".join(map(_step_text, path)).removeprefix(".")


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN.fullmatch(step) else f"[{json.dumps(step, ensure_ascii=False)}]"
