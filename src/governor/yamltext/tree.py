"""Composes parser events into nodes with line numbers, within limits of depth and expanded size.

It uses events instead of the parser's node graph, which is built recursively in C and cannot be bounded.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
import yaml

from governor.yamltext.scalars import TAG, Scalar, scalar, short_tag

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the root of a document."""

Value: TypeAlias = "Scalar | list[Value] | dict[str, Value]"

_MERGE: Final = "<<"


class TooLargeError(ValueError):
    """The text exceeds its limits."""


class Node(msgspec.Struct, frozen=True):
    """One value with its line; ``nodes``, ``chars`` and ``height`` are its expanded size."""

    value: "Scalar | list[Child] | dict[str, Child]"
    line: int
    nodes: int = 1
    chars: int = 0
    height: int = 0

    def plain(self) -> Value:
        """Return the plain value; each alias becomes a copy."""
        if isinstance(self.value, dict):
            return {key: child.node.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.node.plain() for child in self.value]
        return self.value

    def child(self, step: str | int) -> "Child | None":
        """Return the child at a key or position, or None."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and 0 <= step < len(self.value):
            return self.value[step]
        return None


class Child(msgspec.Struct, frozen=True):
    """A node in its parent; ``line`` is that of its key or list item, even if the node is an alias."""

    line: int
    node: Node


class _Open:
    """A collection whose end event has not been read."""

    def __init__(self, line: int, anchor: str | None) -> None:
        self.line = line
        self.anchor = anchor
        self.nodes = 1
        self.chars = 0
        self.height = 0

    def measure(self, node: Node) -> None:
        self.nodes += node.nodes
        self.chars += node.chars
        self.height = max(self.height, node.height + 1)

    def closed(self, value: "list[Child] | dict[str, Child]") -> Node:
        return Node(value, self.line, self.nodes, self.chars, self.height)


class _OpenList(_Open):
    expects_key: Final = False

    def __init__(self, line: int, anchor: str | None) -> None:
        super().__init__(line, anchor)
        self.items: list[Child] = []

    @property
    def path(self) -> Path:
        return (len(self.items),)

    def add(self, node: Node, line: int) -> None:
        self.measure(node)
        self.items.append(Child(line, node))

    def close(self) -> Node:
        return self.closed(self.items)


class _OpenMap(_Open):
    def __init__(self, line: int, anchor: str | None) -> None:
        super().__init__(line, anchor)
        self.fields: dict[str, Child] = {}
        self.merged: dict[str, Child] = {}
        self.merge_line = 0
        self.merging = False
        self.key: str | None = None
        self.key_line = 0

    @property
    def expects_key(self) -> bool:
        return self.key is None

    @property
    def path(self) -> Path:
        return () if self.key is None else (self.key,)

    def add(self, node: Node, line: int) -> None:
        self.measure(node)
        if self.key is None:
            self._open_field(node.value, line)
        elif self.merging:
            self._merge(node)
        else:
            self.fields[self.key] = Child(self.key_line, node)
            self.key = None

    def open_merge(self, line: int) -> None:
        if self.merge_line:
            raise ValueError(f"the key {_MERGE} is already on line {self.merge_line}: give it a list")
        self.key, self.merging, self.merge_line = _MERGE, True, line

    def close(self) -> Node:
        return self.closed({**self.merged, **self.fields})

    def _open_field(self, key: object, line: int) -> None:
        if not isinstance(key, str):
            raise ValueError("the key is not a string: quote it")  # noqa: TRY004 - invalid input, not a wrong argument
        self.key, self.key_line = key, line
        first = self.fields.get(key)
        if first is not None:
            raise ValueError(f"the key {key!r} is already on line {first.line}: remove one of them")

    def _merge(self, node: Node) -> None:
        sources = [child.node for child in node.value] if isinstance(node.value, list) else [node]
        for source in sources:
            if not isinstance(source.value, dict):
                raise ValueError(f"the key {_MERGE} takes a mapping or a list of mappings")  # noqa: TRY004
            for key, child in source.value.items():
                self.merged.setdefault(key, child)
        self.key, self.merging = None, False


class Composer:
    """Collects the root node of each non-empty document from the events of one text."""

    def __init__(self, *, depth: int, nodes: int, document_chars: int) -> None:
        self.roots: list[Node] = []
        self._max_depth = depth
        self._max_nodes = nodes
        self._max_chars = document_chars
        self._nodes = 0
        self._chars = 0
        self._stack: list[_OpenList | _OpenMap] = []
        self._anchors: dict[str, Node] = {}
        self._handlers: Mapping[type, Callable[[Any, int], None]] = {
            yaml.DocumentStartEvent: self._start_document,
            yaml.AliasEvent: self._alias,
            yaml.ScalarEvent: self._scalar,
            yaml.SequenceStartEvent: self._start_list,
            yaml.MappingStartEvent: self._start_map,
            yaml.SequenceEndEvent: self._end,
            yaml.MappingEndEvent: self._end,
        }

    @property
    def path(self) -> Path:
        """The current path in the document."""
        return tuple(step for level in self._stack for step in level.path)

    def feed(self, event: yaml.Event, line: int) -> None:
        """Process one event; raise ValueError with the reason if it is invalid."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event, line)

    def _start_document(self, event: yaml.Event, line: int) -> None:
        self._anchors.clear()
        self._chars = 0

    def _alias(self, event: yaml.AliasEvent, line: int) -> None:
        if any(level.anchor == event.anchor for level in self._stack):
            raise ValueError(f"the alias *{event.anchor} is inside the value that it refers to")
        node = self._anchors.get(event.anchor or "")
        if node is None:
            raise ValueError(f"the alias *{event.anchor} has no anchor &{event.anchor} before it")
        self._bound_depth(len(self._stack) + node.height)
        self._grow(node)
        self._attach(node, line)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        top = self._stack[-1] if self._stack else None
        untagged = event.tag is None and event.implicit[0]
        if top is None and untagged and event.value == "":
            return
        if isinstance(top, _OpenMap) and top.expects_key and untagged and event.value == _MERGE:
            top.open_merge(line)
            return
        node = Node(scalar(event), line, chars=len(event.value))
        self._grow(node)
        self._remember(event.anchor, node)
        self._attach(node, line)

    def _start_list(self, event: yaml.SequenceStartEvent, line: int) -> None:
        self._check_tag(event.tag, f"{TAG}seq")
        self._push(_OpenList(line, event.anchor))

    def _start_map(self, event: yaml.MappingStartEvent, line: int) -> None:
        self._check_tag(event.tag, f"{TAG}map")
        self._push(_OpenMap(line, event.anchor))

    def _check_tag(self, tag: str | None, standard: str) -> None:
        if tag not in (None, "!", standard):
            raise ValueError(f"the tag {short_tag(tag)} is not supported: remove it")

    def _push(self, level: _OpenList | _OpenMap) -> None:
        if self._stack and self._stack[-1].expects_key:
            raise ValueError("a key must be a string, not a list or a mapping")
        self._bound_depth(len(self._stack) + 1)
        self._grow(level.close())
        self._stack.append(level)

    def _end(self, event: yaml.Event, line: int) -> None:
        level = self._stack.pop()
        node = level.close()
        self._remember(level.anchor, node)
        self._attach(node, level.line)

    def _remember(self, anchor: str | None, node: Node) -> None:
        if anchor is not None:
            self._anchors[anchor] = node

    def _bound_depth(self, depth: int) -> None:
        if depth > self._max_depth:
            raise TooLargeError(f"lists and mappings are nested deeper than {self._max_depth} levels")

    def _grow(self, node: Node) -> None:
        self._nodes += node.nodes
        self._chars += node.chars
        if self._nodes > self._max_nodes:
            raise TooLargeError(f"the text expands to more than {self._max_nodes} values: split it")
        if self._chars > self._max_chars:
            raise TooLargeError(f"aliases expand the document beyond {self._max_chars} characters: use fewer")

    def _attach(self, node: Node, line: int) -> None:
        if self._stack:
            self._stack[-1].add(node, line)
        else:
            self.roots.append(node)
