"""One hooked call from its request to the request that the runtime gets: asking the plugins in turn, I/O left out.

consultation = consult(call, request, known)
for plugin in plugins:
    answer = ...  # what it answers to consultation.question
    consultation = consultation.answered(plugin.name, answer)
body = write(consultation.result()) if consultation.changes else body
"""

import functools

import msgspec

from governor.runtimeproxy.hooks.calls import Call, CriRequest, changed, effective, question
from governor.runtimeproxy.hooks.changes import Change
from governor.runtimeproxy.hooks.conflicts import Conflict, ConflictPolicy
from governor.runtimeproxy.hooks.merging import Sum, merge
from governor.runtimeproxy.store.records import Known
from governor.wire.hooks.points import Request, Response


class Consultation(msgspec.Struct, frozen=True, dict=True):
    """A request and what the plugins that were asked so far made of it."""

    call: Call
    request: CriRequest
    total: Sum

    @property
    def question(self) -> Request:
        """What the next plugin is sent. Do not change it."""
        return self.total.question

    @functools.cached_property
    def changes(self) -> tuple[Change, ...]:
        """What will be different in the end, each with the plugin that has the last word on it; for the audit log."""
        return tuple(each for each in self.total.net if effective(self.request, each))

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Where plugins contradicted each other, whoever won."""
        return self.total.conflicts

    @property
    def unused(self) -> tuple[Change, ...]:
        """What plugins wanted to change and this call has no place for."""
        return self.total.unused

    def answered(
        self, plugin: str, answer: Response, policy: ConflictPolicy = ConflictPolicy.LAST_WINS
    ) -> "Consultation":
        """Take a plugin's answer to ``question``.

        INVALID ``hook-answer`` if it means nothing, CONFLICT ``plugins-conflict`` if the policy is to refuse.
        """
        total = merge(self.total, plugin, answer, self.call.shape.places, policy)
        return Consultation(self.call, self.request, total)

    def result(self) -> CriRequest:
        """The request for the runtime; as it came if nothing changed."""
        return changed(self.call, self.request, self.changes)


def consult(call: Call, request: CriRequest, known: Known) -> Consultation:
    """Begin; NOT_FOUND if the call concerns a sandbox or container that nobody knows."""
    return Consultation(call, request, Sum(question(request, known)))
