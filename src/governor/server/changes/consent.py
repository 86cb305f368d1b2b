"""When a change removes so much that its author must say so: the one rule, written down once. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from governor.domain.documents import DocumentRef, ResourceRef
from governor.errors import Detail

MOST_DOCUMENTS: Final = 5
"""More documents than this are not deleted in passing."""


class Loss(msgspec.Struct, frozen=True):
    """What a runtime has now and what it would have afterwards."""

    before: frozenset[ResourceRef]
    after: frozenset[ResourceRef]

    @property
    def gone(self) -> int:
        """How many resources it loses."""
        return len(self.before - self.after)


def needs_consent(deleted: Iterable[DocumentRef], losses: Mapping[str, Loss]) -> list[Detail]:
    """Why the change needs ``allowDeletions``; nothing when it does not.

    It does when it deletes a Runtime, or more than five documents, or takes more than half of the resources from any
    one runtime. One resource may always go: a runtime that has only that one loses it on purpose.
    """
    documents = list(deleted)
    reasons = [
        Detail(reason="deletes a runtime, whose agent will be a stranger from then on", document=str(ref))
        for ref in documents
        if ref.kind == "Runtime"
    ]
    if len(documents) > MOST_DOCUMENTS:
        reasons.append(Detail(reason=f"deletes {len(documents)} documents"))
    reasons.extend(
        Detail(reason=f"takes {loss.gone} of {len(loss.before)} resources from runtime {runtime!r}")
        for runtime, loss in sorted(losses.items())
        if loss.gone > max(1, len(loss.before) // 2)
    )
    return reasons
