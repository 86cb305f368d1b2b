"""Linux resources, which CRI and the hook protocol write alike: taking them over, and what a plugin changed in them.

In both protocols zero and the empty text mean "not specified", so a plugin that answers only the fields it sets looks
like one that repeats its whole request and clears the others. The rules satisfy both kinds:

| field | changed when the answer | so |
|---|---|---|
| numbers | has another number than the request, not zero | -1 (unlimited) can be set, silence resets nothing |
| cpuset_cpus, cpuset_mems | has another text, not empty | |
| | is empty and the answer *repeats* the request | a cpuset can be cleared, but not by silence |
| hugepage_limits | has a page size that is new or has another limit, zero too | a limit is never dropped |
| unified | has a key that is new or has another value | a key is never dropped |

An answer repeats its request if all numbers, page sizes and unified keys of the request are in it, these are at least
two, and one or more of them have the same value. Without such witnesses nobody can tell, and the cpuset stays.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from governor.errors import invalid
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.changes import Difference
from governor.wire.hooks import hooks_pb2

Resources: TypeAlias = cri_pb2.LinuxContainerResources | hooks_pb2.LinuxContainerResources

_UNLIMITED: Final = -1
_MOST: Final = 2**63 - 1
_NUMBERS: Final = {
    "cpu_period": (1, _MOST),
    "cpu_quota": (_UNLIMITED, _MOST),
    "cpu_shares": (1, _MOST),
    "memory_limit_in_bytes": (_UNLIMITED, _MOST),
    "oom_score_adj": (-1000, 1000),
    "memory_swap_limit_in_bytes": (_UNLIMITED, _MOST),
}
_TEXTS: Final = ("cpuset_cpus", "cpuset_mems")
HUGEPAGES: Final = "hugepage_limits"
UNIFIED: Final = "unified"
FIELDS: Final = (*_NUMBERS, *_TEXTS, HUGEPAGES, UNIFIED)


def overlay(source: Resources, target: Resources) -> None:
    """Put what ``source`` specifies over ``target``, as a runtime does with an update; the rest of it stays."""
    target.SetInParent()
    for name in (*_NUMBERS, *_TEXTS):
        if value := getattr(source, name):
            setattr(target, name, value)
    for limit in source.hugepage_limits:
        set_hugepages(target.hugepage_limits, limit.page_size, limit.limit)
    if source.unified:
        target.unified.MergeFrom(source.unified)


def set_hugepages(limits: Any, page_size: str, limit: int) -> None:
    """Set the limit of one page size in its place, or at the end."""
    found = [each for each in limits if each.page_size == page_size]
    for each in found or [limits.add(page_size=page_size)]:
        each.limit = limit


def differences(original: Resources, sent: Resources, answered: Resources) -> Iterator[Difference]:
    """What a plugin that was sent ``sent`` changed; INVALID ``hook-answer`` for a number that means nothing.

    ``original`` is what the first plugin was sent. What earlier plugins set bears no witness: a later one may set the
    same and know nothing of the rest.
    """
    for name, (least, most) in _NUMBERS.items():
        old, new = getattr(sent, name), getattr(answered, name)
        if new not in (0, old):
            if not least <= new <= most:
                raise invalid("hook-answer", f"{name} cannot be {new}; it is between {least} and {most}")
            yield (name,), old, new
    for name in _TEXTS:
        old, new = getattr(sent, name), getattr(answered, name)
        if new != old and (new or _repeats(original, sent, answered)):
            yield (name,), old, new
    # Most answers have neither.
    if answered.hugepage_limits:
        yield from _entries(HUGEPAGES, _hugepages(sent), _hugepages(answered))
    if answered.unified:
        yield from _entries(UNIFIED, dict(sent.unified), dict(answered.unified))


def _repeats(original: Resources, sent: Resources, answered: Resources) -> bool:
    asked, before, given = _witnesses(original), _witnesses(sent), _witnesses(answered)
    same = (asked[key] == before[key] == given[key] for key in asked)
    return len(asked) > 1 and asked.keys() <= given.keys() and any(same)


def _witnesses(resources: Resources) -> dict[tuple[str, str], Any]:
    numbers = {("", name): value for name in _NUMBERS if (value := getattr(resources, name))}
    hugepages = {(HUGEPAGES, size): limit for size, limit in _hugepages(resources).items()}
    return numbers | hugepages | {(UNIFIED, key): value for key, value in resources.unified.items()}


def _entries(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    for key, value in sorted(new.items()):
        if old.get(key) != value:
            yield (name, key), old.get(key), value


def _hugepages(resources: Resources) -> dict[str, int]:
    return {each.page_size: each.limit for each in resources.hugepage_limits}
