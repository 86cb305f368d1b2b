"""Changes of documents, their effect on runtimes, and the revisions that they create."""

import enum
from datetime import datetime

import msgspec

from governor.domain.documents import DocumentRef
from governor.values.treediff import Difference


class ChangeState(enum.StrEnum):
    """The outcome of a change; it is pending while it is being decided."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    REFUSED = "refused"


class DocumentChange(msgspec.Struct, frozen=True, rename="camel"):
    """The effect of a change on one document; version 0 means that the document did not exist."""

    document: DocumentRef
    old_version: int
    new_version: int
    differences: tuple[Difference, ...]


class ClassChange(msgspec.Struct, frozen=True, rename="camel"):
    """The effect of a change on all runtimes that had the same bundle and get the same one; some are examples."""

    digest: str
    count: int
    examples: tuple[str, ...]
    differences: tuple[Difference, ...]


class RuntimeChange(msgspec.Struct, frozen=True, rename="camel"):
    """The effect of a change on the compiled resources of one runtime; sequence is 0 until its delivery is issued."""

    runtime: str
    sequence: int
    digest: str
    differences: tuple[Difference, ...]


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """A change and its outcome. An accepted change that modified a document names its revision.

    ``classes`` cover all affected runtimes, ``runtimes`` are the first of them, or all if that was requested.
    """

    id: str
    state: ChangeState
    author: str
    message: str
    time: datetime
    revision: int | None
    documents: tuple[DocumentChange, ...]
    runtimes: tuple[RuntimeChange, ...]
    warnings: tuple[str, ...] = ()
    classes: tuple[ClassChange, ...] = ()


class Revision(msgspec.Struct, frozen=True, rename="camel"):
    """An immutable, accepted state of all documents; ``documents`` are those that it touched."""

    number: int
    digest: str
    parent: int | None
    author: str
    message: str
    time: datetime
    documents: tuple[DocumentRef, ...]
