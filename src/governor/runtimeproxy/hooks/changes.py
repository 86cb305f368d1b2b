"""Changes that plugins make to fields of a request, and conflicts between them.

Settings and commands import this module, so it does not import protobuf. Values of environment variables are
``Secret``, so a change is safe to print.
"""

import enum
from collections.abc import Iterable
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.values.paths import render
from governor.values.secret import MASK, Secret

_DISPLAY_CHARS: Final = 60

FieldPath: TypeAlias = tuple[str, ...]
"""A field of a hook response, followed by a field of its resources or the key of an entry."""

MaskedValue: TypeAlias = int | str | None
"""None stands for an absent map or list entry."""

Value: TypeAlias = MaskedValue | Secret

Difference: TypeAlias = tuple[FieldPath, Value, Value]
"""Path, old value, new value."""

V = TypeVar("V")


class FieldChange(msgspec.Struct, Generic[V], frozen=True):
    """One plugin's change to one field."""

    plugin: str
    path: FieldPath
    old: V
    new: V

    @property
    def field(self) -> str:
        """Return the path as text, for example ``container_resources.cpu_shares``."""
        return render(self.path)

    def __str__(self) -> str:
        return f"{self.plugin} changed {self.field} from {self.old!r} to {self.new!r}"


MaskedChange: TypeAlias = FieldChange[MaskedValue]
"""A change as the control socket returns it, without secrets."""


class Change(FieldChange[Value], frozen=True):
    """A change as it is applied to a request."""

    def masked(self, max_chars: int) -> MaskedChange:
        """Return the change with secrets masked and long texts cut to ``max_chars``."""
        path = tuple([_cut(each, max_chars) for each in self.path])
        return FieldChange(self.plugin, path, _masked(self.old, max_chars), _masked(self.new, max_chars))


class ConflictPolicy(enum.StrEnum):
    """Which of two conflicting changes applies.

    The default is the last one: that plugin saw the earlier value in its request and set another.
    """

    LAST_WINS = "last-wins"
    FIRST_WINS = "first-wins"
    REFUSE = "refuse"


class Conflict(msgspec.Struct, frozen=True):
    """Two changes of one field by different plugins. Safe to print."""

    first: Change
    last: Change

    def __str__(self) -> str:
        first, last = self.first, self.last
        return (
            f"plugins {first.plugin} and {last.plugin} conflict on {first.field}: "
            f"{first.plugin} set {first.new!r}, {last.plugin} set {last.new!r}"
        )


class Resolution(msgspec.Struct, frozen=True):
    """The changes of one plugin that apply, and their conflicts with earlier plugins."""

    changes: tuple[Change, ...]
    conflicts: tuple[Conflict, ...]


def resolve(earlier: Iterable[Change], later: Iterable[Change], policy: ConflictPolicy) -> Resolution:
    """Resolve one plugin's changes against those of earlier plugins.

    Raise CONFLICT ``plugins-conflict`` if they conflict and the policy is REFUSE.
    """
    latest = {change.path: change for change in earlier}
    later = tuple(later)
    if not latest:
        return Resolution(later, ())
    conflicts = tuple(Conflict(latest[change.path], change) for change in later if change.path in latest)
    if conflicts and policy is ConflictPolicy.REFUSE:
        raise GovernorError(Kind.CONFLICT, "plugins-conflict", "; ".join(map(str, conflicts)))
    if policy is ConflictPolicy.FIRST_WINS:
        later = tuple(change for change in later if change.path not in latest)
    return Resolution(later, conflicts)


def display(value: MaskedValue) -> str:
    """Return a value as it appears in text output."""
    return "(none)" if value is None else truncate(str(value)) or '""'


def truncate(text: str) -> str:
    """Return the text, cut to what fits in a line of output."""
    return _cut(text, _DISPLAY_CHARS)


def _masked(value: Value, max_chars: int) -> MaskedValue:
    match value:
        case Secret():
            return MASK
        case str():
            return _cut(value, max_chars)
        case _:
            return value


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
