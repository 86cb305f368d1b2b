"""Which documents belong to a source of this server, and are read-only for everybody else while it is one."""

from collections.abc import Iterable

from governor.domain.documents import DocumentRef
from governor.errors import Detail, GovernorError, Kind


class Ownership:
    """Known only while the server runs: a source claims what it has taken, each time it has taken something."""

    def __init__(self) -> None:
        self._owner_of: dict[DocumentRef, str] = {}

    def claim(self, source: str, documents: Iterable[DocumentRef]) -> None:
        """These documents belong to the source, and no others do any more."""
        others = {ref: owner for ref, owner in self._owner_of.items() if owner != source}
        # Changes are decided in other threads, so what they look at is replaced and never altered.
        self._owner_of = others | dict.fromkeys(documents, source)

    def check(self, documents: Iterable[DocumentRef], author: str) -> None:
        """Refuse a change of documents that belong to somebody else."""
        owner_of = self._owner_of
        foreign = [ref for ref in documents if owner_of.get(ref, author) != author]
        if foreign:
            details = [
                Detail(reason=f"belongs to {owner_of[ref]}; change it there", document=str(ref)) for ref in foreign
            ]
            message = f"a document comes from {owner_of[foreign[0]]} and is read-only here"
            raise GovernorError(Kind.CONFLICT, "document-owned", message, details)
