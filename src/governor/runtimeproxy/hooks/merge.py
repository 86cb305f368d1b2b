"""Merging of plugins' changes into a request. Pure: calling the plugins is ``rounds``'s task.

Plugins are called in order, and each receives the request with all earlier changes:

    merged = begin(message, records)
    for plugin in plugins:
        changed = ...  # what the plugin changes in merged.question
        merged = merged.add(plugin.name, changed)
    body = merged.message.edited(merged.changes) if merged.changes else body
"""

from collections.abc import Iterable

import msgspec

from governor.runtimeproxy.hooks.calls import CONTAINER_RESOURCES, Call
from governor.runtimeproxy.hooks.changes import Change, Conflict, ConflictPolicy, Difference, resolve
from governor.runtimeproxy.hooks.questions import Question, question_for
from governor.runtimeproxy.hooks.requests import Message, Request
from governor.runtimeproxy.store.records import Records


class MergedRequest(msgspec.Struct, frozen=True, dict=True):
    """A request and the changes of the plugins called so far."""

    message: Message
    original: Question
    """The question for the first plugin."""
    applied: tuple[Change, ...] = ()
    """Every accepted change, in the order of the plugins."""
    conflicts: tuple[Conflict, ...] = ()
    unused: tuple[Change, ...] = ()
    """Changes of fields that this call's request does not have."""
    observed: tuple[Change, ...] = ()
    """Changes that plugins in mode ``observe`` would have made."""

    @property
    def question(self) -> Question:
        """Return the question for the next plugin."""
        if not self.applied:
            return self.original
        # Not a cached_property, which takes a lock.
        known: Question | None = self.__dict__.get("question")
        if known is None:
            known = self.__dict__["question"] = self.original.with_changes(self.applied)
        return known

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return one change per field of the request that ends up different, sorted by field.

        The change names the last plugin that set the field.
        """
        first = {change.path: change.old for change in reversed(self.applied)}
        last = {change.path: change for change in self.applied}
        net = [
            Change(last[path].plugin, path, first[path], last[path].new)
            for path in sorted(last)
            if first[path] != last[path].new
        ]
        request = self.message.request
        return tuple([change for change in net if is_effective(request, change)])

    def add(
        self, plugin: str, changed: Iterable[Difference], policy: ConflictPolicy = ConflictPolicy.LAST_WINS
    ) -> "MergedRequest":
        """Merge what a plugin changed in ``question``.

        Raise CONFLICT ``plugins-conflict`` if it conflicts with an earlier plugin and the policy is REFUSE.
        """
        changes = [Change(plugin, *each) for each in changed]
        carries = self.message.carries
        resolution = resolve(self.applied, [each for each in changes if carries(each.path)], policy)
        return msgspec.structs.replace(
            self,
            applied=self.applied + resolution.changes,
            conflicts=self.conflicts + resolution.conflicts,
            unused=self.unused + tuple([each for each in changes if not carries(each.path)]),
        )

    def observe(
        self, plugin: str, changed: Iterable[Difference], policy: ConflictPolicy = ConflictPolicy.LAST_WINS
    ) -> "MergedRequest":
        """Record what ``add`` would change; later plugins do not see it. Raise like ``add``."""
        made = self.add(plugin, changed, policy).applied[len(self.applied) :]
        request = self.message.request
        observed = tuple(each for each in made if is_effective(request, each))
        return msgspec.structs.replace(self, observed=self.observed + observed)


def begin(message: Message, records: Records) -> MergedRequest:
    """Return the request before any plugin; raise NOT_FOUND if its sandbox or container is unknown."""
    return MergedRequest(message, question_for(message.request, records))


def is_effective(request: Request, change: Change) -> bool:
    """Return whether a change makes a difference to the request.

    An update keeps what it does not specify: a plugin can drop a cpuset from it, but the update cannot clear one.
    """
    if request.call is Call.UPDATE_CONTAINER_RESOURCES:
        match change.path, change.new:
            case (str(field), cpuset), "" if field == CONTAINER_RESOURCES:
                return request.resources is not None and bool(getattr(request.resources, cpuset))
    return True
