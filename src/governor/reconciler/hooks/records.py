"""Records of hooks: one for each hook, event and reference, in the order in which the hooks started. Pure."""

import datetime
from collections.abc import Iterable

import msgspec

from governor.kube.controller.conditions import format_time
from governor.reconciler.kinds.module_instance import HookRecord, HookState


class Records(msgspec.Struct, frozen=True):
    """The records of one event and reference, among those of the other events of that reference."""

    event: str
    reference: str
    entries: tuple[HookRecord, ...] = ()

    def get(self, hook: str) -> HookRecord | None:
        """Return the record of a hook for this event."""
        return next((each for each in self.entries if (each.hook, each.event) == (hook, self.event)), None)

    def of_event(self) -> tuple[HookRecord, ...]:
        """Return the records of this event."""
        return tuple(each for each in self.entries if each.event == self.event)

    def has_succeeded(self, hook: str) -> bool:
        """Return whether a hook has succeeded for this event."""
        record = self.get(hook)
        return record is not None and record.state is HookState.SUCCEEDED

    def last_used(self, hook: str) -> bool:
        """Return whether the object of a hook is of this event. A later event may have run it again."""
        last = next((each for each in reversed(self.entries) if each.hook == hook), None)
        return last is not None and last.event == self.event

    def with_state(self, hook: str, state: HookState, now: datetime.datetime, replaces: str = "") -> "Records":
        """Return the records with a new state of a hook."""
        record = HookRecord(hook, self.event, self.reference, state, format_time(now), replaces)
        others = (each for each in self.entries if (each.hook, each.event) != (hook, self.event))
        return msgspec.structs.replace(self, entries=(*others, record))


def records_for(event: str, reference: str, records: Iterable[HookRecord]) -> Records:
    """Return the records of a reference. Those of others are dropped: hooks run again if one of them comes back."""
    return Records(event, reference, tuple(each for each in records if each.reference == reference))
