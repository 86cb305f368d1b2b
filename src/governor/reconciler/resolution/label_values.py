"""Values from labels of a cluster: ``valuesFromLabels: {path: label}``."""

from collections.abc import Mapping, Sequence
from typing import Final

from governor.domain.conditions import Actor
from governor.errors import GovernorError
from governor.reconciler.kinds.definition import Values
from governor.reconciler.kinds.state import Problem
from governor.values.paths import parse, render

_MAX_DEPTH: Final = 32


def with_label_values(values: Values, labels_by_path: Mapping[str, str], labels: Mapping[str, str]) -> Values | Problem:
    """Return the values with those of the labels set at their paths, or why that is not possible."""
    for path, label in sorted(labels_by_path.items()):
        if label not in labels:
            message = f"valuesFromLabels[{path}]: the Cluster has no label {label}; add it to the Cluster"
            return Problem("LabelMissing", message, Actor.OPERATOR)
        changed = _with_value(values, path, labels[label])
        if isinstance(changed, Problem):
            return changed
        values = changed
    return values


def _with_value(values: Values, path: str, value: str) -> Values | Problem:
    try:
        steps = parse(path)
    except GovernorError as error:
        return _invalid(path, error.message)
    keys = [each for each in steps if isinstance(each, str)]
    if not keys or len(keys) < len(steps) or len(keys) > _MAX_DEPTH:
        return _invalid(path, f"it must consist of at most {_MAX_DEPTH} keys of maps, such as global.region")
    return _set(values, keys, value, path, 0)


def _set(tree: Values, keys: Sequence[str], value: str, path: str, depth: int) -> Values | Problem:
    key = keys[depth]
    if depth == len(keys) - 1:
        return {**tree, key: value}
    inner = tree.get(key)
    if inner is not None and not isinstance(inner, dict):
        return _invalid(path, f"{render(tuple(keys[: depth + 1]))} is not a map in the values of the Installation")
    changed = _set(inner or {}, keys, value, path, depth + 1)
    return changed if isinstance(changed, Problem) else {**tree, key: changed}


def _invalid(path: str, reason: str) -> Problem:
    return Problem("ValuesPathInvalid", f"valuesFromLabels[{path[:64]}]: {reason}", Actor.USER)
