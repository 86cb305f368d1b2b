"""Values that must never be printed.

``Secret`` is a plain text in memory; ``Sealed`` is its encrypted form, safe to store and to compare. The server
encrypts and decrypts them.
"""

from typing import Any, Final, Self

import msgspec

MASK: Final = "***"
SEALED_KEY: Final = "$sealed"


class Secret:
    """A text that prints as a mask; only ``reveal`` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the plain text; call it only where the text is sent or written."""
        return self._text

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return format(MASK, format_spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a Secret cannot be pickled")


class Sealed(msgspec.Struct, frozen=True):
    """An encrypted leaf of a tree: ``box`` is the ciphertext; equal plain texts have an equal ``mac``."""

    box: str = msgspec.field(name=SEALED_KEY)
    mac: str

    def __repr__(self) -> str:
        return MASK

    def __format__(self, format_spec: str) -> str:
        return format(MASK, format_spec)

    def __rich_repr__(self) -> Any:
        yield MASK
