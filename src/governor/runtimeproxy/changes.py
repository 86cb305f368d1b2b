"""A change that a plugin made to one field of a request, for applying it and for the audit log.

Values of environment variables are ``Secret``, so a change can be printed wherever it goes.
"""

import functools
from typing import Final, TypeAlias

import msgspec

from governor.values.paths import render
from governor.values.secret import Secret

_SHORT_LETTERS: Final = 60

FieldPath: TypeAlias = tuple[str, ...]
"""A field of a hook's answer, then a field of its resources or the key of an entry."""

Value: TypeAlias = int | str | Secret | None
"""None is an entry of a map or list that is not there."""

Difference: TypeAlias = tuple[FieldPath, Value, Value]
"""A field, what it was, what it is to be."""


class Change(msgspec.Struct, frozen=True, dict=True):
    """What one plugin changed in one field."""

    plugin: str
    path: FieldPath
    old: Value
    new: Value

    @functools.cached_property
    def field(self) -> str:
        """The field for people, as ``container_resources.cpu_shares``."""
        return render(self.path)

    def __str__(self) -> str:
        return f"{self.plugin} changed {self.field} from {self.old!r} to {self.new!r}"


def in_words(value: int | str | None) -> str:
    """A value in a line for people."""
    return "(none)" if value is None else short(str(value)) or '""'


def short(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= _SHORT_LETTERS else f"{text[:_SHORT_LETTERS]}..."
