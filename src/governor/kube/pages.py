"""What a page of a list looks like, whatever its items are decoded to."""

from typing import Annotated, Final, Generic, TypeAlias, TypeVar

import msgspec

PAGE: Final = 500
"""How many objects are asked for at a time."""

T = TypeVar("T")

# Whatever else it is must not be taken for an empty list: what is on no page counts as gone.
_ListKind: TypeAlias = Annotated[str, msgspec.Meta(pattern="List$")]


class Position(msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "more": "continue"}):
    """The metadata of a list or of a bookmark: up to where it tells everything."""

    resource_version: str = ""
    """Empty from servers that keep no history, such as one that measures."""
    more: str = ""
    """The token of the next page; empty on the last."""


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    kind: _ListKind
    metadata: Position
    items: list[T] | None = None
