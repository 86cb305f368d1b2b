"""What a plugin answered, and what it changed by that. Pure.

Only what differs from the question that the plugin received counts as a change:

| field of the answer | changed when |
|---|---|
| labels, annotations | a key is new or has another value; a missing key stays |
| cgroup parent | it differs and is not empty |
| resources | see ``resources`` |
| environment | a variable is new or has another value |

A variable missing from an answer is removed only if the plugin is registered with ``"environment": "replace"`` and
returns any variable: by its answer alone, a plugin that returns only what it sets cannot be told from one that removes
the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from governor.runtimeproxy.environment import Environment, decode_text, text_of
from governor.runtimeproxy.hooks.calls import (
    ANNOTATIONS,
    CGROUP_PARENT,
    CONTAINER_ANNOTATIONS,
    CONTAINER_RESOURCES,
    ENVIRONMENT,
    LABELS,
    POD_CGROUP_PARENT,
    RESOURCES,
)
from governor.runtimeproxy.hooks.changes import Difference
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.hooks.resources import entry_differences, resource_differences
from governor.values.secret import Secret
from governor.wire.hooks.workload import Resources

_NOTHING: Final = Resources()


class Answer(msgspec.Struct, frozen=True):
    """A plugin's answer about a pod or a container; what is unset changes nothing."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    cgroup_parent: str = ""
    resources: Resources | None = None
    variables: Sequence[bytes] = ()
    """Encoded variables."""


def differences(
    original: Question, sent: Question, answer: Answer, *, replace_environment: bool = False
) -> Iterator[Difference]:
    """Yield what a plugin changed in the question ``sent``; ``original`` is the one before all plugins.

    Raise INVALID ``hook-answer`` if a value is out of range.
    """
    if sent.container is None:
        yield from _pod_differences(original, sent, answer)
        return
    container = sent.container
    yield from _map_differences(CONTAINER_ANNOTATIONS, container.annotations, answer.annotations)
    yield from _text_differences(POD_CGROUP_PARENT, container.pod_cgroup_parent, answer.cgroup_parent)
    if answer.resources is not None:
        first = original.container.resources if original.container else None
        changed = resource_differences(first or _NOTHING, container.resources or _NOTHING, answer.resources)
        for path, old, new in changed:
            yield (CONTAINER_RESOURCES, *path), old, new
    if answer.variables:
        yield from environment_differences(sent.sent_environment, answer.variables, replaces=replace_environment)


def _pod_differences(original: Question, sent: Question, answer: Answer) -> Iterator[Difference]:
    pod = sent.pod
    yield from _map_differences(LABELS, pod.labels, answer.labels)
    yield from _map_differences(ANNOTATIONS, pod.annotations, answer.annotations)
    yield from _text_differences(CGROUP_PARENT, pod.cgroup_parent, answer.cgroup_parent)
    if answer.resources is not None:
        first = original.pod.resources or _NOTHING
        for path, old, new in resource_differences(first, pod.resources or _NOTHING, answer.resources):
            yield (RESOURCES, *path), old, new


def environment_differences(sent: Environment, returned: Sequence[bytes], *, replaces: bool) -> Iterator[Difference]:
    """Yield the variables that a plugin set and, if it ``replaces`` the environment, those that it removed."""
    known = set(sent.visible)
    changed = [each for each in returned if each not in known]
    if not returned or not (changed or replaces):
        return
    before = sent.texts()
    # Another library may encode an entry differently, for example an empty value.
    for (key,), old, new in entry_differences(before, dict(map(decode_text, changed))):
        yield (ENVIRONMENT, key), None if old is None else Secret(str(old)), Secret(str(new))
    for key in sorted(before.keys() - {text_of(each)[0] for each in returned}) if replaces else ():
        yield (ENVIRONMENT, key), Secret(before[key]), None


def _text_differences(name: str, sent: str, returned: str) -> Iterator[Difference]:
    if returned not in ("", sent):
        yield (name,), sent, returned


def _map_differences(name: str, sent: Mapping[str, str], returned: Mapping[str, str]) -> Iterator[Difference]:
    if returned:
        for path, old, new in entry_differences(sent, returned):
            yield (name, *path), old, new
