"""Dapr's facts, kept as package data in ``data/`` and written by ``make generate``.

Reading them is part of loading the program's own code, so it is no I/O with the surroundings. They are read at first
use and not at import; JSON decodes in half a millisecond.
"""

import pkgutil
from typing import Any, TypeVar

import msgspec

Facts = TypeVar("Facts")


def read(name: str, facts: type[Facts]) -> Facts:
    """The facts of that name; callers keep them."""
    data: Any = pkgutil.get_data("governor.domain.dapr", f"data/{name}.json")
    return msgspec.json.decode(data, type=facts)
