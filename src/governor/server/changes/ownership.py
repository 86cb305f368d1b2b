"""Documents owned by a source of this server, which no other author may change while the source is configured."""

from collections.abc import Iterable

from governor.domain.documents import DocumentRef
from governor.errors import Detail, GovernorError, Kind


class Ownership:
    """Owner of each document. Kept in memory: a source renews its claim after every read."""

    def __init__(self) -> None:
        self._owner_of: dict[DocumentRef, str] = {}

    def claim(self, source: str, documents: Iterable[DocumentRef]) -> None:
        """Make the source the owner of exactly these documents."""
        others = {ref: owner for ref, owner in self._owner_of.items() if owner != source}
        # Replaced, never mutated: the pipeline reads it from other threads.
        self._owner_of = others | dict.fromkeys(documents, source)

    def check(self, documents: Iterable[DocumentRef], author: str) -> None:
        """Raise if a document is owned by a source other than the author."""
        owner_of = self._owner_of
        owned = [ref for ref in documents if owner_of.get(ref, author) != author]
        if owned:
            details = [Detail(reason=f"owned by {owner_of[ref]}; change it there", document=str(ref)) for ref in owned]
            message = f"a document comes from {owner_of[owned[0]]} and is read-only here"
            raise GovernorError(Kind.CONFLICT, "document-owned", message, details)
