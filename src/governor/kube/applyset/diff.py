"""What of an object counts when two states of it are compared, and what of it may be shown."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec

from governor.errors import invalid
from governor.kube.objects import Object, ObjectRef
from governor.values.paths import Item, Path, Step, parse
from governor.values.secret import Secret
from governor.values.treediff import Difference, diff
from governor.values.trees import Tree, map_leaves, named_items

_VOLATILE: Final = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"})
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def comparable(live: Object) -> Object:
    """The object without what the server keeps about it; what is secret in it is wrapped."""
    kept: Object = {key: value for key, value in live.items() if key not in {"metadata", "status"}}
    kept["metadata"] = {key: value for key, value in live["metadata"].items() if key not in _VOLATILE}
    return _wrapped(kept) if is_secret(live) else kept


def differences(live: Object, wanted: Object) -> tuple[Difference, ...]:
    """What turns one state of an object into another, masked."""
    return diff(comparable(live), comparable(wanted))


def is_secret(manifest: Object) -> bool:
    """Whether it is one of Kubernetes' own Secrets."""
    return (manifest.get("apiVersion"), manifest.get("kind")) == ("v1", "Secret")


def _wrapped(secret: Object) -> Object:
    return {
        key: map_leaves(value, _wrap) if key in {"data", "stringData"} else value for key, value in secret.items()
    } | {"metadata": _without_copy(secret["metadata"])}


def _wrap(_: Path, leaf: Tree) -> Tree:
    return Secret(str(leaf))


def _without_copy(metadata: dict[str, Any]) -> dict[str, Any]:
    """kubectl writes the whole Secret into an annotation once more."""
    annotations = metadata.get("annotations") or {}
    if _LAST_APPLIED not in annotations:
        return metadata
    return metadata | {"annotations": annotations | {_LAST_APPLIED: Secret(annotations[_LAST_APPLIED])}}


ANY: Final = "*"
_METADATA: Final = frozenset({"annotations", "finalizers", "labels", "ownerReferences"})

_Address: TypeAlias = tuple[Step, ...]
"""All ways to name one child: the key, or the position and the item's name."""


class Ignored(msgspec.Struct, frozen=True):
    """Fields of some objects; ``*`` in group, kind, namespace or name stands for any text."""

    paths: tuple[str, ...]
    group: str = ANY
    kind: str = ANY
    namespace: str = ANY
    name: str = ANY

    def concerns(self, ref: ObjectRef) -> bool:
        """Whether it is about this object."""
        pairs = ((self.group, ref.group), (self.kind, ref.kind), (self.namespace, ref.namespace), (self.name, ref.name))
        return all(_fits(pattern, text) for pattern, text in pairs)


def patterns_for(ref: ObjectRef, rules: Iterable[Ignored]) -> tuple[Path, ...]:
    """The paths that may differ in one object; INVALID if one cannot be read, or says which object it is."""
    return tuple(_pattern(path) for rule in rules if rule.concerns(ref) for path in rule.paths)


def _pattern(text: str) -> Path:
    path = parse(text)
    first, second = (*path, None, None)[:2]
    about_metadata = first == "metadata" and second in _METADATA
    about_content = isinstance(first, str) and ANY not in first and first not in {"apiVersion", "kind", "metadata"}
    if not (about_metadata or about_content):
        allowed = ", ".join(sorted(f"metadata.{name}" for name in _METADATA))
        raise invalid("ignored-path", f"{text!r} cannot be ignored: only {allowed} and fields beside metadata can")
    return path


def without(tree: Tree, patterns: Iterable[Path]) -> Tree:
    """The tree without everything that a pattern covers."""
    patterns = tuple(patterns)
    if not patterns or not isinstance(tree, (dict, list, tuple)):
        return tree
    kept = [
        (steps[0], without(child, _below(patterns, steps)))
        for steps, child in _children(tree)
        if not _covered(patterns, steps)
    ]
    return dict(kept) if isinstance(tree, dict) else [child for _, child in kept]


def with_live(manifest: Object, live: Object, patterns: Iterable[Path]) -> Object:
    """The manifest with the live values in place of its own wherever a pattern covers it.

    Leaving such fields out instead would give them up, and the server would remove those that nobody else has set.
    """
    merged: Object = _take(manifest, live, tuple(patterns))
    return merged


def _take(wanted: Tree, live: Any, patterns: tuple[Path, ...]) -> Tree:
    if not patterns or not isinstance(wanted, (dict, list, tuple)):
        return wanted
    there = {steps[-1]: child for steps, child in _children(live)}
    taken: list[tuple[Step, Tree]] = []
    for steps, child in _children(wanted):
        if not _covered(patterns, steps):
            taken.append((steps[0], _take(child, there.get(steps[-1]), _below(patterns, steps))))
        elif steps[-1] in there:
            taken.append((steps[0], there[steps[-1]]))
    return dict(taken) if isinstance(wanted, dict) else [child for _, child in taken]


def _children(tree: Tree) -> Iterator[tuple[_Address, Tree]]:
    if isinstance(tree, dict):
        yield from (((key,), child) for key, child in tree.items())
    elif isinstance(tree, (list, tuple)):
        names = tuple(named_items(tree) or ())
        for position, child in enumerate(tree):
            yield ((position, Item(names[position])) if names else (position,)), child


def _covered(patterns: tuple[Path, ...], steps: _Address) -> bool:
    return any(len(pattern) == 1 and _step_fits(pattern[0], steps) for pattern in patterns)


def _below(patterns: tuple[Path, ...], steps: _Address) -> tuple[Path, ...]:
    return tuple(pattern[1:] for pattern in patterns if len(pattern) > 1 and _step_fits(pattern[0], steps))


def _step_fits(pattern: Step, steps: _Address) -> bool:
    if pattern == ANY:
        return True
    if isinstance(pattern, str):
        return any(isinstance(step, str) and _fits(pattern, step) for step in steps)
    if isinstance(pattern, Item):
        return any(isinstance(step, Item) and _fits(pattern.name, step.name) for step in steps)
    return pattern in steps


def _fits(pattern: str, text: str) -> bool:
    if ANY not in pattern:
        return pattern == text
    return re.fullmatch(".*".join(map(re.escape, pattern.split(ANY))), text, re.DOTALL) is not None
