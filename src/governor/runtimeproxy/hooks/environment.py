"""A container's environment: a list of bytes in CRI, a map of texts in the hook protocol.

CRI's order, duplicates and bytes are kept:

| in CRI | in the map |
|---|---|
| a name several times | its last value, the one that the container sees |
| a last value that is not UTF-8 | absent, since it has no text form |

Setting a variable therefore sets the last entry of that name or appends one; removing it removes all entries of that
name.

A variable missing from a response is removed only if the plugin is registered with ``"environment": "replace"`` and
returns any variable: by its response alone, a plugin that returns only what it sets cannot be told from one that
removes the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from governor.runtimeproxy.cri.cri_pb2 import KeyValue
from governor.runtimeproxy.hooks.changes import Difference, FieldPath, Value
from governor.values.secret import Secret


def copy_variables(variables: Iterable[KeyValue], target: MutableMapping[str, str]) -> None:
    """Copy the variables that have a text form into ``target``."""
    try:
        for each in variables:
            target[each.key] = each.value.decode()
    except UnicodeDecodeError:
        target.clear()
        last = {each.key: _text(each.value) for each in variables}
        target.update({key: text for key, text in last.items() if text is not None})


def set_variable(variables: Any, name: str, value: Value) -> None:
    """Set a variable in a CRI request; None removes it."""
    indexes = [index for index, each in enumerate(variables) if each.key == name]
    if isinstance(value, Secret):
        entry = variables[indexes[-1]] if indexes else variables.add(key=name)
        entry.value = value.reveal().encode()
    else:
        for index in reversed(indexes):
            del variables[index]


def environment_differences(
    sent: Mapping[str, str], returned: Mapping[str, str], *, replaces: bool
) -> Iterator[Difference]:
    """Yield the variables that a plugin set and, if it ``replaces`` the environment, those that it removed."""
    if not returned:
        return
    # Protobuf maps are much slower than dictionaries when read entry by entry.
    before, after = dict(sent), dict(returned)
    for path, old, new in entry_differences(before, after):
        yield path, None if old is None else Secret(old), Secret(new)
    for key in sorted(before.keys() - after.keys()) if replaces else ():
        yield (key,), Secret(before[key]), None


def entry_differences(before: Mapping[str, str], after: dict[str, str]) -> Iterator[tuple[FieldPath, str | None, str]]:
    """Yield the entries of ``after`` that are new or have another value, sorted by key."""
    for key, value in sorted(after.items()):
        if before.get(key) != value:
            yield (key,), before.get(key), value


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
