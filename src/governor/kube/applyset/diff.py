"""Comparing two states of an object: server-set fields and ignored fields do not count, Secret values are masked.

An ignored path is written as in ``values.paths`` and covers everything below it. A ``*`` in a name matches any text:
``spec.template.metadata.annotations["*"]``, ``spec.containers[name="*"].image``, ``metadata.labels["example.com/*"]``.
A quoted ``["*"]`` alone also matches any list item.
"""

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

ANY: Final = "*"
DIGEST_KEY: Final = "digest-key"
"""Name of the annotation of a Secret with the key of its digest; shown masked."""

_SERVER_METADATA: Final = frozenset(
    {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"}
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_IGNORABLE_METADATA: Final = frozenset({"annotations", "finalizers", "labels", "ownerReferences"})

_Address: TypeAlias = tuple[Step, ...]
"""All names of one child: its key, or its position and item name."""


class IgnoredFields(msgspec.Struct, frozen=True):
    """Fields to ignore in some objects; ``*`` in group, kind, namespace or name matches any text."""

    paths: tuple[str, ...]
    """Paths of the fields, such as spec.replicas; each covers everything below it."""
    group: str = ANY
    """API group of the objects."""
    kind: str = ANY
    """Kind of the objects."""
    namespace: str = ANY
    """Namespace of the objects."""
    name: str = ANY
    """Name of the objects."""

    def matches(self, ref: ObjectRef) -> bool:
        """Return whether the rule applies to this object."""
        pairs = ((self.group, ref.group), (self.kind, ref.kind), (self.namespace, ref.namespace), (self.name, ref.name))
        return all(text_matches(pattern, text) for pattern, text in pairs)


def comparable(live: Object) -> Object:
    """Return the object without status and server-set metadata, and with Secret values wrapped."""
    kept: Object = {key: value for key, value in live.items() if key not in {"metadata", "status"}}
    kept["metadata"] = {key: value for key, value in live["metadata"].items() if key not in _SERVER_METADATA}
    return _with_wrapped_values(kept) if is_secret(live) else kept


def differences(old: Object, new: Object) -> tuple[Difference, ...]:
    """Return the masked differences between two states of an object."""
    return diff(comparable(old), comparable(new))


def is_secret(manifest: Object) -> bool:
    """Return whether the manifest is a core/v1 Secret."""
    return (manifest.get("apiVersion"), manifest.get("kind")) == ("v1", "Secret")


def patterns_for(ref: ObjectRef, rules: Iterable[IgnoredFields]) -> tuple[Path, ...]:
    """Return the ignored paths of one object; INVALID if a path cannot be parsed or is part of its identity."""
    return tuple(_pattern(path) for rule in rules if rule.matches(ref) for path in rule.paths)


def without_fields(tree: Tree, patterns: Iterable[Path]) -> Tree:
    """Return the tree without the fields that a pattern covers."""
    patterns = tuple(patterns)
    if not patterns or not isinstance(tree, (dict, list, tuple)):
        return tree
    kept = [
        (steps[0], without_fields(child, _below(patterns, steps)))
        for steps, child in _children(tree)
        if not _covered(patterns, steps)
    ]
    return dict(kept) if isinstance(tree, dict) else [child for _, child in kept]


def with_live_values(manifest: Object, live: Object, patterns: Iterable[Path]) -> Object:
    """Return the manifest with the live values of all fields that a pattern covers.

    Omitting such fields would release them, and the server would remove those without another manager.
    """
    merged: Object = _overlay(manifest, live, tuple(patterns))
    return merged


def _with_wrapped_values(secret: Object) -> Object:
    return {
        key: map_leaves(value, _wrap) if key in {"data", "stringData"} else value for key, value in secret.items()
    } | {"metadata": _with_wrapped_annotations(secret["metadata"])}


def _wrap(_: Path, leaf: Tree) -> Tree:
    return Secret(str(leaf))


def _with_wrapped_annotations(metadata: dict[str, Any]) -> dict[str, Any]:
    """Wrap the key of the digest, and the annotation in which kubectl stores a copy of the whole Secret."""
    annotations = metadata.get("annotations") or {}
    wrapped = {
        key: Secret(value)
        for key, value in annotations.items()
        if key == _LAST_APPLIED or key.rpartition("/")[2] == DIGEST_KEY
    }
    return metadata | {"annotations": annotations | wrapped} if wrapped else metadata


def _pattern(text: str) -> Path:
    path = parse(text)
    first, second = (*path, None, None)[:2]
    in_metadata = first == "metadata" and second in _IGNORABLE_METADATA
    in_content = isinstance(first, str) and ANY not in first and first not in {"apiVersion", "kind", "metadata"}
    if not (in_metadata or in_content):
        allowed = ", ".join(sorted(f"metadata.{name}" for name in _IGNORABLE_METADATA))
        raise invalid("ignored-path", f"{text!r} cannot be ignored; use {allowed} or a field outside metadata")
    return path


def _overlay(desired: Tree, live: Any, patterns: tuple[Path, ...]) -> Tree:
    if not patterns or not isinstance(desired, (dict, list, tuple)):
        return desired
    live_children = {steps[-1]: child for steps, child in _children(live)}
    merged: list[tuple[Step, Tree]] = []
    for steps, child in _children(desired):
        if not _covered(patterns, steps):
            merged.append((steps[0], _overlay(child, live_children.get(steps[-1]), _below(patterns, steps))))
        elif steps[-1] in live_children:
            merged.append((steps[0], live_children[steps[-1]]))
    return dict(merged) if isinstance(desired, dict) else [child for _, child in merged]


def _children(tree: Tree) -> Iterator[tuple[_Address, Tree]]:
    if isinstance(tree, dict):
        yield from (((key,), child) for key, child in tree.items())
    elif isinstance(tree, (list, tuple)):
        names = tuple(named_items(tree) or ())
        for position, child in enumerate(tree):
            yield ((position, Item(names[position])) if names else (position,)), child


def _covered(patterns: tuple[Path, ...], steps: _Address) -> bool:
    return any(len(pattern) == 1 and _step_matches(pattern[0], steps) for pattern in patterns)


def _below(patterns: tuple[Path, ...], steps: _Address) -> tuple[Path, ...]:
    return tuple(pattern[1:] for pattern in patterns if len(pattern) > 1 and _step_matches(pattern[0], steps))


def _step_matches(pattern: Step, steps: _Address) -> bool:
    if pattern == ANY:
        return True
    if isinstance(pattern, str):
        return any(isinstance(step, str) and text_matches(pattern, step) for step in steps)
    if isinstance(pattern, Item):
        return any(isinstance(step, Item) and text_matches(pattern.name, step.name) for step in steps)
    return pattern in steps


def text_matches(pattern: str, text: str) -> bool:
    """Return whether the text matches the pattern, in which ``*`` stands for any text."""
    if ANY not in pattern:
        return pattern == text
    return re.fullmatch(".*".join(map(re.escape, pattern.split(ANY))), text, re.DOTALL) is not None
