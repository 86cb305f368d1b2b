"""Setting one field of a message, by the path of a change. Variables are set in ``environment``."""

from collections.abc import MutableMapping
from typing import Any

from google.protobuf.message import Message

from governor.runtimeproxy.hooks.changes import FieldPath, Value
from governor.runtimeproxy.hooks.resources import set_hugepages


def set_field(message: Any, path: FieldPath, value: Value) -> None:
    """Set a field of a message, or an entry of a map or list; None removes an entry."""
    *parents, last = path
    for parent in parents:
        message = getattr(message, parent)
    if isinstance(message, Message):
        setattr(message, last, value)
    elif isinstance(message, MutableMapping):
        _set_entry(message, last, value)
    elif isinstance(value, int):
        set_hugepages(message, last, value)
    else:
        raise TypeError(f"a field at {path} cannot be set to a {type(value).__name__}")


def _set_entry(entries: MutableMapping[str, str], key: str, value: Value) -> None:
    if value is None:
        del entries[key]
    else:
        entries[key] = str(value)
