"""A change that a plugin made to one field of a request: to apply it, for the audit log, and for whoever asks later.

Values of environment variables are ``Secret``, so a change can be printed wherever it goes.
"""

from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from governor.values.paths import render
from governor.values.secret import MASK, Secret

_SHORT_LETTERS: Final = 60

FieldPath: TypeAlias = tuple[str, ...]
"""A field of a hook's answer, then a field of its resources or the key of an entry."""

ShownValue: TypeAlias = int | str | None
"""None is an entry of a map or list that is not there."""

Value: TypeAlias = ShownValue | Secret

Difference: TypeAlias = tuple[FieldPath, Value, Value]
"""A field, what it was, what it is to be."""

V = TypeVar("V")


class FieldChange(msgspec.Struct, Generic[V], frozen=True):
    """What one plugin changed in one field."""

    plugin: str
    path: FieldPath
    old: V
    new: V

    @property
    def field(self) -> str:
        """The field for people, as ``container_resources.cpu_shares``."""
        return render(self.path)

    def __str__(self) -> str:
        return f"{self.plugin} changed {self.field} from {self.old!r} to {self.new!r}"


ShownChange: TypeAlias = FieldChange[ShownValue]
"""As it is told to whoever asks: there is no secret in it."""


class Change(FieldChange[Value], frozen=True):
    """As it is applied."""

    def shown(self, letters: int) -> ShownChange:
        """As it may be told: secrets masked, of long texts only so many letters."""
        path = tuple(_cut(each, letters) for each in self.path)
        return FieldChange(self.plugin, path, _shown(self.old, letters), _shown(self.new, letters))


def in_words(value: ShownValue) -> str:
    """A value in a line for people."""
    return "(none)" if value is None else short(str(value)) or '""'


def short(text: str) -> str:
    """The beginning of a long text."""
    return _cut(text, _SHORT_LETTERS)


def _shown(value: Value, letters: int) -> ShownValue:
    match value:
        case Secret():
            return MASK
        case str():
            return _cut(value, letters)
        case _:
            return value


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[:letters]}..."
