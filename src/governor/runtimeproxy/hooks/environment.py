"""A container's environment: a list in CRI, whose order, duplicates and bytes are kept; a map of texts for plugins.

| in CRI | in the map |
|---|---|
| a name several times | its last value, which is the one that counts in the container |
| a last value that is not UTF-8 | not there: it cannot be shown as it is, and anything else could be taken for it |

So a plugin that sets a name sets its last entry, a new name comes at the end, and with a name all its entries go.
"""

from collections.abc import Iterable, MutableMapping
from typing import Any

from governor.runtimeproxy.cri.cri_pb2 import KeyValue
from governor.runtimeproxy.hooks.changes import Value
from governor.values.secret import Secret


def show(variables: Iterable[KeyValue], shown: MutableMapping[str, str]) -> None:
    """Put the variables that can be shown to a plugin into a map."""
    try:
        for each in variables:
            shown[each.key] = each.value.decode()
    except UnicodeDecodeError:
        shown.clear()
        last = {each.key: _text(each.value) for each in variables}
        shown.update({key: text for key, text in last.items() if text is not None})


def set_variable(variables: Any, name: str, value: Value) -> None:
    """Set a variable in a CRI request, or with None remove it."""
    places = [index for index, each in enumerate(variables) if each.key == name]
    if isinstance(value, Secret):
        entry = variables[places[-1]] if places else variables.add(key=name)
        entry.value = value.reveal().encode()
    else:
        for index in reversed(places):
            del variables[index]


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
