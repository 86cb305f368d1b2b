"""Two plugins that set one field of a request to different values, and who of them is right."""

import enum
from collections.abc import Iterable

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.hooks.changes import Change


class ConflictPolicy(enum.StrEnum):
    """How a conflict is settled.

    The last one is right by default: it was shown what the earlier ones had set, and decided otherwise.
    """

    LAST_WINS = "last-wins"
    FIRST_WINS = "first-wins"
    REFUSE = "refuse"


class Conflict(msgspec.Struct, frozen=True):
    """The change that was there, and the later one by another plugin that contradicts it. Safe to print."""

    first: Change
    last: Change

    def __str__(self) -> str:
        first, last = self.first, self.last
        return (
            f"plugins {first.plugin} and {last.plugin} disagree about {first.field}: "
            f"{first.plugin} set {first.new!r}, {last.plugin} set {last.new!r}"
        )


class Settled(msgspec.Struct, frozen=True):
    """What remains of a plugin's changes, and what they contradicted."""

    changes: tuple[Change, ...]
    conflicts: tuple[Conflict, ...]


def settle(earlier: Iterable[Change], later: Iterable[Change], policy: ConflictPolicy) -> Settled:
    """Hold the changes of one plugin against those of the plugins before it; CONFLICT if the policy is to refuse."""
    authors = {change.path: change for change in earlier}
    later = tuple(later)
    conflicts = tuple(Conflict(authors[change.path], change) for change in later if change.path in authors)
    if conflicts and policy is ConflictPolicy.REFUSE:
        raise GovernorError(Kind.CONFLICT, "plugins-conflict", "; ".join(map(str, conflicts)))
    if policy is ConflictPolicy.FIRST_WINS:
        later = tuple(change for change in later if change.path not in authors)
    return Settled(later, conflicts)
