"""Merging of plugins' responses into a CRI request. Pure: calling the plugins is ``dispatch``'s task.

Only what differs from the request that a plugin received counts as a change:

| field of the response | changed when |
|---|---|
| labels, annotations | a key is new or has another value; a missing key stays |
| cgroup parent | it differs and is not empty |
| resources | see ``resources`` |
| environment | see ``environment`` |

Plugins are called in order, and each receives the request with all earlier changes:

    merged = begin(call, request, records)
    for plugin in plugins:
        response = ...  # the plugin's response to merged.hook_request
        merged = merged.add(plugin.name, response)
    body = write(merged.result()) if merged.changes else body
"""

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.message import Message

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.calls import Call, CriRequest, hook_request_for
from governor.runtimeproxy.hooks.changes import (
    Change,
    Conflict,
    ConflictPolicy,
    Difference,
    FieldPath,
    Value,
    resolve,
)
from governor.runtimeproxy.hooks.environment import entry_differences, environment_differences, set_variable
from governor.runtimeproxy.hooks.resources import resource_differences, set_hugepages
from governor.runtimeproxy.store.records import Records
from governor.values.secret import Secret
from governor.wire.hooks.points import HookRequest, HookResponse

R = TypeVar("R", bound=CriRequest)


class MergedRequest(msgspec.Struct, frozen=True, dict=True):
    """A CRI request and the changes of the plugins called so far. Its messages must not be modified."""

    call: Call
    request: CriRequest
    original: HookRequest
    """The hook request for the first plugin."""
    applied: tuple[Change, ...] = ()
    """Every accepted change, in the order of the plugins."""
    conflicts: tuple[Conflict, ...] = ()
    unused: tuple[Change, ...] = ()
    """Changes of fields that this call's request does not have."""

    @functools.cached_property
    def hook_request(self) -> HookRequest:
        """Return the hook request for the next plugin."""
        return _with_changes(self.original, self.applied)

    @functools.cached_property
    def changes(self) -> tuple[Change, ...]:
        """Return one change per field of the CRI request that ends up different, sorted by field.

        The change names the last plugin that set the field.
        """
        first = {change.path: change.old for change in reversed(self.applied)}
        last = {change.path: change for change in self.applied}
        net = (
            Change(last[path].plugin, path, first[path], last[path].new)
            for path in sorted(last)
            if first[path] != last[path].new
        )
        return tuple(change for change in net if is_effective(self.request, change))

    def add(
        self,
        plugin: str,
        response: HookResponse,
        policy: ConflictPolicy = ConflictPolicy.LAST_WINS,
        *,
        replace_environment: bool = False,
    ) -> "MergedRequest":
        """Merge a plugin's response to ``hook_request``; with ``replace_environment`` it may remove variables.

        Raise INVALID ``hook-answer`` if a value is out of range, CONFLICT ``plugins-conflict`` if it conflicts with
        an earlier plugin and the policy is REFUSE.
        """
        found = differences(self.original, self.hook_request, response, replace_environment=replace_environment)
        changes = [Change(plugin, *each) for each in found]
        targets = self.call.shape.targets
        resolution = resolve(self.applied, (each for each in changes if each.path[0] in targets), policy)
        return msgspec.structs.replace(
            self,
            applied=self.applied + resolution.changes,
            conflicts=self.conflicts + resolution.conflicts,
            unused=self.unused + tuple(each for each in changes if each.path[0] not in targets),
        )

    def result(self) -> CriRequest:
        """Return the request for the runtime; equal to ``request`` if there are no changes."""
        return apply_changes(self.call, self.request, self.changes)


def begin(call: Call, request: CriRequest, records: Records) -> MergedRequest:
    """Return the request before any plugin; raise NOT_FOUND if its sandbox or container is unknown."""
    return MergedRequest(call, request, hook_request_for(request, records))


def differences(
    original: HookRequest, sent: HookRequest, response: HookResponse, *, replace_environment: bool = False
) -> Iterator[Difference]:
    """Yield what a plugin changed in the hook request ``sent``; ``original`` is the one before all plugins."""
    # Unset fields of a response change nothing.
    for field, returned in response.ListFields():
        name = field.name
        if name == _ENVIRONMENT:
            found = environment_differences(getattr(sent, name), returned, replaces=replace_environment)
        else:
            found = _RULES[name](getattr(original, name), getattr(sent, name), returned)
        for path, old, new in found:
            yield (name, *path), old, new


def apply_changes(call: Call, request: R, changes: Iterable[Change]) -> R:
    """Return a copy of a CRI request with these changes; all other fields, known or not, are kept."""
    result = copy.deepcopy(request)
    for change in changes:
        set_field(result, (*call.shape.targets[change.path[0]], *change.path[1:]), change.new)
    return result


def is_effective(request: CriRequest, change: Change) -> bool:
    """Return whether a change makes a difference to the CRI request.

    An update keeps what it does not specify: a plugin can drop a cpuset from it, but the update cannot clear one.
    """
    if isinstance(request, cri_pb2.UpdateContainerResourcesRequest):
        match change.path, change.new:
            case ("container_resources", cpuset), "":
                return bool(getattr(request.linux, cpuset))
    return True


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
        set_variable(message, last, value)


def _set_entry(entries: MutableMapping[str, str], key: str, value: Value) -> None:
    if value is None:
        del entries[key]
    else:
        entries[key] = value.reveal() if isinstance(value, Secret) else str(value)


def _with_changes(request: HookRequest, changes: Collection[Change]) -> HookRequest:
    if not changes:
        return request
    changed = copy.deepcopy(request)
    for change in changes:
        set_field(changed, change.path, change.new)
    return changed


def _text_differences(_original: str, sent: str, returned: str) -> Iterator[Difference]:
    if returned not in ("", sent):
        yield (), sent, returned


def _map_differences(
    _original: Mapping[str, str], sent: Mapping[str, str], returned: Mapping[str, str]
) -> Iterator[Difference]:
    if returned:
        yield from entry_differences(sent, dict(returned))


_ENVIRONMENT: Final = "container_envs"
_RULES: Final[Mapping[str, Callable[[Any, Any, Any], Iterator[Difference]]]] = {
    "labels": _map_differences,
    "annotations": _map_differences,
    "cgroup_parent": _text_differences,
    "resources": resource_differences,
    "container_annotations": _map_differences,
    "container_resources": resource_differences,
    "pod_cgroup_parent": _text_differences,
}
