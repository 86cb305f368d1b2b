"""What a plugin changed in Linux resources. Pure.

In the hook protocol zero and the empty text mean "not specified", so a plugin that returns only the fields it sets
looks like one that returns its whole request with the other fields cleared. The rules satisfy both kinds:

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

from collections.abc import Iterator, Mapping
from typing import Any, Final

from governor.errors import invalid
from governor.runtimeproxy.hooks.changes import Difference
from governor.wire.hooks.workload import HUGEPAGES, UNIFIED, Resources

_UNLIMITED: Final = -1
_INT64_MAX: Final = 2**63 - 1
NUMBERS: Final = {
    "cpu_period": (1, _INT64_MAX),
    "cpu_quota": (_UNLIMITED, _INT64_MAX),
    "cpu_shares": (1, _INT64_MAX),
    "memory_limit_in_bytes": (_UNLIMITED, _INT64_MAX),
    "oom_score_adj": (-1000, 1000),
    "memory_swap_limit_in_bytes": (_UNLIMITED, _INT64_MAX),
}
"""The least and the largest value of each number, apart from zero."""
TEXTS: Final = ("cpuset_cpus", "cpuset_mems")


def resource_differences(original: Resources, sent: Resources, returned: Resources) -> Iterator[Difference]:
    """Yield what a plugin that received ``sent`` changed; raise INVALID ``hook-answer`` if a number is out of range.

    ``original`` is the request before all plugins. Values set by earlier plugins do not count as echoed: a later plugin
    may set the same ones and leave the rest unset.
    """
    for name, (low, high) in NUMBERS.items():
        old, new = getattr(sent, name), getattr(returned, name)
        if new not in (0, old):
            if not low <= new <= high:
                raise invalid("hook-answer", f"{name} cannot be {new}; it must be between {low} and {high}")
            yield (name,), old, new
    for name in TEXTS:
        old, new = getattr(sent, name), getattr(returned, name)
        if new != old and (new or _echoes(original, sent, returned)):
            yield (name,), old, new
    # Most responses have neither.
    if returned.hugepage_limits:
        for (key,), old, new in entry_differences(sent.hugepage_limits, returned.hugepage_limits):
            yield (HUGEPAGES, key), old, new
    if returned.unified:
        for (key,), old, new in entry_differences(sent.unified, returned.unified):
            yield (UNIFIED, key), old, new


def entry_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[tuple[str], Any, Any]]:
    """Yield the entries of ``after`` that are new or have another value, sorted by key."""
    for key, value in sorted(after.items()):
        if before.get(key) != value:
            yield (key,), before.get(key), value


def _echoes(original: Resources, sent: Resources, returned: Resources) -> bool:
    first, before, after = _specified(original), _specified(sent), _specified(returned)
    unchanged = (first[key] == before[key] == after[key] for key in first)
    return len(first) > 1 and first.keys() <= after.keys() and any(unchanged)


def _specified(resources: Resources) -> dict[tuple[str, str], Any]:
    numbers = {("", name): value for name in NUMBERS if (value := getattr(resources, name))}
    hugepages = {(HUGEPAGES, size): limit for size, limit in resources.hugepage_limits.items()}
    return numbers | hugepages | {(UNIFIED, key): value for key, value in resources.unified.items()}
