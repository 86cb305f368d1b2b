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
        answer = ...  # the plugin's answer to merged.question
        merged = merged.add(plugin.name, answer)
    body = write(merged.result()) if merged.changes else body
"""

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.calls import Call, CriRequest
from governor.runtimeproxy.hooks.changes import Change, Conflict, ConflictPolicy, Difference, resolve
from governor.runtimeproxy.hooks.environment import Environment, entry_differences, environment_differences
from governor.runtimeproxy.hooks.fields import set_field
from governor.runtimeproxy.hooks.questions import ENVIRONMENT, Answer, Question, question_for
from governor.runtimeproxy.hooks.resources import resource_differences
from governor.runtimeproxy.store.records import Records

R = TypeVar("R", bound=CriRequest)


class MergedRequest(msgspec.Struct, frozen=True, dict=True):
    """A CRI request and the changes of the plugins called so far. Its messages must not be modified."""

    call: Call
    request: CriRequest
    original: Question
    """The question for the first plugin."""
    applied: tuple[Change, ...] = ()
    """Every accepted change, in the order of the plugins."""
    conflicts: tuple[Conflict, ...] = ()
    unused: tuple[Change, ...] = ()
    """Changes of fields that this call's request does not have."""

    @functools.cached_property
    def question(self) -> Question:
        """Return the question for the next plugin."""
        return self.original.with_changes(self.applied)

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
        answer: Answer,
        policy: ConflictPolicy = ConflictPolicy.LAST_WINS,
        *,
        replace_environment: bool = False,
    ) -> "MergedRequest":
        """Merge a plugin's answer to ``question``; with ``replace_environment`` it may remove variables.

        Raise INVALID ``hook-answer`` if a value is out of range, CONFLICT ``plugins-conflict`` if it conflicts with
        an earlier plugin and the policy is REFUSE.
        """
        found = differences(self.original, self.question, answer, replace_environment=replace_environment)
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
    return MergedRequest(call, request, question_for(request, records))


def differences(
    original: Question, sent: Question, answer: Answer, *, replace_environment: bool = False
) -> Iterator[Difference]:
    """Yield what a plugin changed in the question ``sent``; ``original`` is the one before all plugins."""
    # Unset fields of an answer change nothing.
    for field, returned in answer.message.ListFields():
        name = field.name
        for path, old, new in _RULES[name](getattr(original.message, name), getattr(sent.message, name), returned):
            yield (name, *path), old, new
    if answer.variables:
        variables = environment_differences(sent.sent_environment, answer.variables, replaces=replace_environment)
        for path, old, new in variables:
            yield (ENVIRONMENT, *path), old, new


def apply_changes(call: Call, request: R, changes: Iterable[Change]) -> R:
    """Return a copy of a CRI request with these changes; all other fields, known or not, are kept."""
    result = copy.deepcopy(request)
    variables = []
    for change in changes:
        if change.path[0] == ENVIRONMENT:
            variables.append((change.path[1], change.new))
        else:
            set_field(result, (*call.shape.targets[change.path[0]], *change.path[1:]), change.new)
    if variables and isinstance(result, cri_pb2.CreateContainerRequest):
        entries = Environment(list(result.config.envs)).with_changes(variables).entries
        del result.config.envs[:]
        result.config.envs.extend(entries)
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


def _text_differences(_original: str, sent: str, returned: str) -> Iterator[Difference]:
    if returned not in ("", sent):
        yield (), sent, returned


def _map_differences(
    _original: Mapping[str, str], sent: Mapping[str, str], returned: Mapping[str, str]
) -> Iterator[Difference]:
    if returned:
        yield from entry_differences(sent, dict(returned))


_RULES: Final[Mapping[str, Callable[[Any, Any, Any], Iterator[Difference]]]] = {
    "labels": _map_differences,
    "annotations": _map_differences,
    "cgroup_parent": _text_differences,
    "resources": resource_differences,
    "container_annotations": _map_differences,
    "container_resources": resource_differences,
    "pod_cgroup_parent": _text_differences,
}
