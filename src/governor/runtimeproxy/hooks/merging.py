"""The sum of what plugins change: only what differs from the request that a plugin was sent counts.

| field of the answer | changed when |
|---|---|
| labels, annotations | a key is new or has another value; a key left out stays |
| cgroup parent | it is another one and not empty |
| resources | see ``resources`` |
| environment | a key is new or has another value; a key left out is removed if the answer *repeats* the request |

An answer repeats the environment of its request if at least two variables that no plugin set are in it unchanged, and
more than are left out: a plugin that only sets a variable to the value it has must not remove all others.

Plugins are asked in order, and each is sent the sum of the earlier ones. Where a change goes in a CRI request is in
``calls``.
"""

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from typing import Any, Final

import msgspec
from google.protobuf.message import Message

from governor.runtimeproxy.hooks.changes import Change, Difference, FieldPath, Value
from governor.runtimeproxy.hooks.conflicts import Conflict, ConflictPolicy, settle
from governor.runtimeproxy.hooks.environment import set_variable
from governor.runtimeproxy.hooks.resources import differences, set_hugepages
from governor.values.secret import Secret
from governor.wire.hooks.points import Request, Response

_REPEATED_VARIABLES: Final = 2


class Sum(msgspec.Struct, frozen=True, dict=True):
    """What the plugins asked so far made of a request; do not change its messages.

    ``original`` is what the first plugin was sent.
    """

    original: Request
    changes: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    unused: tuple[Change, ...] = ()
    """Changes of fields that this call cannot take."""

    @functools.cached_property
    def question(self) -> Request:
        """What the next plugin is sent."""
        return _with_changes(self.original, self.changes)

    @property
    def net(self) -> tuple[Change, ...]:
        """One change for each field that in the end is not what it was, in the order of the fields."""
        first = {change.path: change.old for change in reversed(self.changes)}
        last = {change.path: change for change in self.changes}
        return tuple(
            Change(last[path].plugin, path, first[path], last[path].new)
            for path in sorted(last)
            if first[path] != last[path].new
        )


def merge(
    total: Sum,
    plugin: str,
    answer: Response,
    taken: Collection[str],
    policy: ConflictPolicy = ConflictPolicy.LAST_WINS,
) -> Sum:
    """Add a plugin's answer to ``total.question``; ``taken`` are the fields of answers that the call has a place for.

    INVALID ``hook-answer`` if the answer means nothing, CONFLICT ``plugins-conflict`` if the policy is to refuse.
    """
    changes = [Change(plugin, *difference) for difference in compare(total.original, total.question, answer)]
    usable = [change for change in changes if change.path[0] in taken]
    settled = settle(total.changes, usable, policy)
    return Sum(
        total.original,
        total.changes + settled.changes,
        total.conflicts + settled.conflicts,
        total.unused + tuple(change for change in changes if change.path[0] not in taken),
    )


def compare(original: Request, sent: Request, answer: Response) -> Iterator[Difference]:
    """What a plugin changed in the request that it was sent; ``original`` is the one before all plugins."""
    # What is not set in an answer changes nothing.
    for field, answered in answer.ListFields():
        name = field.name
        for path, old, new in _RULES[name](getattr(original, name), getattr(sent, name), answered):
            yield (name, *path), old, new


def put(message: Any, location: FieldPath, value: Value) -> None:
    """Set a field, or an entry of a map or list, of a message; None removes an entry."""
    *steps, last = location
    for step in steps:
        message = getattr(message, step)
    if isinstance(message, Message):
        setattr(message, last, value)
    elif isinstance(message, MutableMapping):
        _put_entry(message, last, value)
    elif isinstance(value, int):
        set_hugepages(message, last, value)
    else:
        set_variable(message, last, value)


def _put_entry(entries: MutableMapping[str, str], key: str, value: Value) -> None:
    if value is None:
        del entries[key]
    else:
        entries[key] = value.reveal() if isinstance(value, Secret) else str(value)


def _with_changes(question: Request, changes: Collection[Change]) -> Request:
    if not changes:
        return question
    changed = copy.deepcopy(question)
    for change in changes:
        put(changed, change.path, change.new)
    return changed


def _text(_original: str, sent: str, answered: str) -> Iterator[Difference]:
    if answered not in ("", sent):
        yield (), sent, answered


def _entries(
    _original: Mapping[str, str], sent: Mapping[str, str], answered: Mapping[str, str]
) -> Iterator[Difference]:
    if answered:
        yield from _set(sent, dict(answered))


def _set(before: Mapping[str, str], after: dict[str, str]) -> Iterator[tuple[FieldPath, str | None, str]]:
    for key, value in sorted(after.items()):
        if before.get(key) != value:
            yield (key,), before.get(key), value


def _environment(
    original: Mapping[str, str], sent: Mapping[str, str], answered: Mapping[str, str]
) -> Iterator[Difference]:
    if not answered:
        return
    # Entry by entry, the maps of messages are much slower than dictionaries.
    before, after = dict(sent), dict(answered)
    for path, old, new in _set(before, after):
        yield path, None if old is None else Secret(old), Secret(new)
    left_out = sorted(before.keys() - after.keys())
    if left_out and _repeats(dict(original), before, after, len(left_out)):
        for key in left_out:
            yield (key,), Secret(before[key]), None


def _repeats(original: dict[str, str], before: dict[str, str], after: dict[str, str], left_out: int) -> bool:
    unchanged = sum(before.get(key) == after.get(key) == value for key, value in original.items())
    return unchanged >= _REPEATED_VARIABLES and unchanged > left_out


_RULES: Final[Mapping[str, Callable[[Any, Any, Any], Iterator[Difference]]]] = {
    "labels": _entries,
    "annotations": _entries,
    "cgroup_parent": _text,
    "resources": differences,
    "container_annotations": _entries,
    "container_resources": differences,
    "pod_cgroup_parent": _text,
    "container_envs": _environment,
}
