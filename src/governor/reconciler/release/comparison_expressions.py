"""CEL expressions that compare two states of an object except for some of its fields. Pure.

A path with a position, or with ``*`` before its end, ignores everything from there: an expression that is too
permissive leaves an edit to the repair of drift, one that is too strict would lock out a controller.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from governor.kube.applyset.diff import ANY, IgnoredFields
from governor.values.paths import Item, Path, Step, parse

ALWAYS: Final = "true"


class Exemption(msgspec.Struct, frozen=True):
    """A path that may differ, and for which objects: an expression."""

    path: Path
    guard: str = ALWAYS


def exemptions(rules: Iterable[IgnoredFields]) -> list[Exemption]:
    """Return the paths that rules ignore."""
    return [Exemption(parse(path), _guard(rule)) for rule in rules for path in rule.paths]


def _guard(rule: IgnoredFields) -> str:
    """Return the expression for a request about an object that a rule matches."""
    fields = {"request.kind.group": rule.group, "request.kind.kind": rule.kind}
    fields |= {"request.namespace": rule.namespace, "request.name": rule.name}
    found = [_matches(field, pattern) for field, pattern in fields.items() if pattern != ANY]
    return " && ".join(found) or ALWAYS


def unchanged(field: str, exempt: Iterable[Exemption]) -> str:
    """Return the expression for a request that does not change a top-level field of its object."""
    own = [msgspec.structs.replace(each, path=each.path[1:]) for each in exempt if each.path[0] == field]
    key = _text(field)
    return _same(f"object[?{key}]", f"oldObject[?{key}]", own, 0)


def _same(new: str, old: str, exempt: list[Exemption], depth: int) -> str:
    """Return the expression for two optional values that are the same except for some paths below them."""
    cut = [_truncated(each) for each in exempt]
    if guards := [each.guard for each in cut if not each.path]:
        return _any([*guards, _same(new, old, [each for each in cut if each.path], depth)])
    if not cut:
        return f"{new} == {old}"
    if all(isinstance(each.path[0], Item) for each in cut):
        return _same_items(new, old, cut, depth)
    return _same_entries(new, old, [each for each in cut if isinstance(each.path[0], str)], depth)


def _truncated(exempt: Exemption) -> Exemption:
    """Return the exemption without a first step that cannot be compared: then everything there is exempt."""
    if not exempt.path:
        return exempt
    first = exempt.path[0]
    is_open = isinstance(first, int) or (len(exempt.path) > 1 and ANY in _name(first))
    return Exemption((), exempt.guard) if is_open else exempt


def _same_entries(new: str, old: str, exempt: list[Exemption], depth: int) -> str:
    """Return the expression for two maps."""
    first, second, key = f"{new}.orValue({{}})", f"{old}.orValue({{}})", f"k{depth}"
    skipped = [_exempt_name(key, each) for each in exempt if len(each.path) == 1]
    below = _by_step(each for each in exempt if len(each.path) > 1)
    skipped += [f"{key} == {_text(_name(step))}" for step in below]
    skip = _any(skipped)
    parts = [
        f"{first}.all({key}, {skip} || ({key} in {second} && {first}[{key}] == {second}[{key}]))",
        f"{second}.all({key}, {skip} || {key} in {first})",
    ]
    for step, inner in below.items():
        name = _text(_name(step))
        parts.append(_same(f"{new}[?{name}]", f"{old}[?{name}]", inner, depth + 1))
    return f"({' && '.join(parts)})"


def _same_items(new: str, old: str, exempt: list[Exemption], depth: int) -> str:
    """Return the expression for two lists whose items have names; their order does not count."""
    one, other = f"x{depth}", f"y{depth}"
    skipped = _any(_exempt_name(_item_name(one), each) for each in exempt if len(each.path) == 1) or "false"
    first, second = (f"{each}.orValue([]).filter({one}, !({skipped}))" for each in (new, old))
    same = f"{one} == {other}"
    for step, inner in _by_step(each for each in exempt if len(each.path) > 1).items():
        below = _same(f"optional.of({one})", f"optional.of({other})", inner, depth + 1)
        same = f"({_item_name(one)} == {_text(_name(step))} ? {below} : {same})"
    found = f"{second}.exists({other}, {_item_name(other)} == {_item_name(one)} && {same})"
    return f"({first}.size() == {second}.size() && {first}.all({one}, {found}))"


def _by_step(exempt: Iterable[Exemption]) -> Mapping[Step, list[Exemption]]:
    found: dict[Step, list[Exemption]] = {}
    for each in exempt:
        found.setdefault(each.path[0], []).append(Exemption(each.path[1:], each.guard))
    return found


def _exempt_name(variable: str, exempt: Exemption) -> str:
    matches = _matches(variable, _name(exempt.path[0]))
    return matches if exempt.guard == ALWAYS else f"({matches} && {exempt.guard})"


def _item_name(variable: str) -> str:
    return f'{variable}[?"name"].orValue("")'


def _name(step: Step) -> str:
    return step.name if isinstance(step, Item) else str(step)


def _matches(value: str, pattern: str) -> str:
    if ANY not in pattern:
        return f"{value} == {_text(pattern)}"
    expression = ".*".join(map(re.escape, pattern.split(ANY)))
    return f"{value}.matches({_text(f'^{expression}$')})"


def _any(expressions: Iterable[str]) -> str:
    found = list(dict.fromkeys(expressions))
    if ALWAYS in found:
        return ALWAYS
    return f"({' || '.join(found)})" if len(found) > 1 else "".join(found)


def _text(text: str) -> str:
    return json.dumps(text)
