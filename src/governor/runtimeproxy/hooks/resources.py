"""Linux resources, which CRI and the hook protocol write alike: copying them, and what a plugin changed in them.

In both protocols zero and the empty text mean "not specified", so a plugin that returns only the fields it sets looks
like one that returns its whole request with the other fields cleared. The rules satisfy both kinds:

| field | changed when the response | so |
|---|---|---|
| numbers | has another number than the request, not zero | -1 (unlimited) can be set, an unset field resets nothing |
| cpuset_cpus, cpuset_mems | has another text, not empty | |
| | is empty and the response *echoes* the request | a cpuset can be cleared, but not by leaving it unset |
| hugepage_limits | has a page size that is new or has another limit, zero too | a limit is never dropped |
| unified | has a key that is new or has another value | a key is never dropped |

A response echoes its request if it has all numbers, page sizes and unified keys of the request, these are at least two,
and at least one of them is unchanged. Otherwise the intent is ambiguous and the cpuset stays.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from governor.errors import invalid
from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.changes import Difference
from governor.wire.hooks import hooks_pb2

Resources: TypeAlias = cri_pb2.LinuxContainerResources | hooks_pb2.LinuxContainerResources

_UNLIMITED: Final = -1
_INT64_MAX: Final = 2**63 - 1
_NUMBERS: Final = {
    "cpu_period": (1, _INT64_MAX),
    "cpu_quota": (_UNLIMITED, _INT64_MAX),
    "cpu_shares": (1, _INT64_MAX),
    "memory_limit_in_bytes": (_UNLIMITED, _INT64_MAX),
    "oom_score_adj": (-1000, 1000),
    "memory_swap_limit_in_bytes": (_UNLIMITED, _INT64_MAX),
}
_TEXTS: Final = ("cpuset_cpus", "cpuset_mems")
HUGEPAGES: Final = "hugepage_limits"
UNIFIED: Final = "unified"
FIELDS: Final = (*_NUMBERS, *_TEXTS, HUGEPAGES, UNIFIED)


def overlay(source: Resources, target: Resources) -> None:
    """Copy what ``source`` specifies into ``target``, as a runtime applies an update; the rest of it stays."""
    target.SetInParent()
    for name in (*_NUMBERS, *_TEXTS):
        if value := getattr(source, name):
            setattr(target, name, value)
    for limit in source.hugepage_limits:
        set_hugepages(target.hugepage_limits, limit.page_size, limit.limit)
    if source.unified:
        target.unified.MergeFrom(source.unified)


def set_hugepages(limits: Any, page_size: str, limit: int) -> None:
    """Set the limit of one page size, in place or appended."""
    found = [each for each in limits if each.page_size == page_size]
    for each in found or [limits.add(page_size=page_size)]:
        each.limit = limit


def resource_differences(original: Resources, sent: Resources, returned: Resources) -> Iterator[Difference]:
    """Yield what a plugin that received ``sent`` changed; raise INVALID ``hook-answer`` if a number is out of range.

    ``original`` is the request before all plugins. Values set by earlier plugins do not count as echoed: a later plugin
    may set the same ones and leave the rest unset.
    """
    for name, (low, high) in _NUMBERS.items():
        old, new = getattr(sent, name), getattr(returned, name)
        if new not in (0, old):
            if not low <= new <= high:
                raise invalid("hook-answer", f"{name} cannot be {new}; it must be between {low} and {high}")
            yield (name,), old, new
    for name in _TEXTS:
        old, new = getattr(sent, name), getattr(returned, name)
        if new != old and (new or _echoes(original, sent, returned)):
            yield (name,), old, new
    # Most responses have neither.
    if returned.hugepage_limits:
        yield from _entry_differences(HUGEPAGES, _hugepages(sent), _hugepages(returned))
    if returned.unified:
        yield from _entry_differences(UNIFIED, dict(sent.unified), dict(returned.unified))


def _echoes(original: Resources, sent: Resources, returned: Resources) -> bool:
    first, before, after = _specified(original), _specified(sent), _specified(returned)
    unchanged = (first[key] == before[key] == after[key] for key in first)
    return len(first) > 1 and first.keys() <= after.keys() and any(unchanged)


def _specified(resources: Resources) -> dict[tuple[str, str], Any]:
    numbers = {("", name): value for name in _NUMBERS if (value := getattr(resources, name))}
    hugepages = {(HUGEPAGES, size): limit for size, limit in _hugepages(resources).items()}
    return numbers | hugepages | {(UNIFIED, key): value for key, value in resources.unified.items()}


def _entry_differences(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    for key, value in sorted(new.items()):
        if old.get(key) != value:
            yield (name, key), old.get(key), value


def _hugepages(resources: Resources) -> dict[str, int]:
    return {each.page_size: each.limit for each in resources.hugepage_limits}
