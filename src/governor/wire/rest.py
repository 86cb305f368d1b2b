"""Bodies of the server's REST API; the OpenAPI document is made from these structs. Errors are in ``problems``.

Nouns come from ``domain``; here is only what exists because of the API.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from governor.domain.bundles import Delivery
from governor.domain.conditions import Condition, Summary
from governor.domain.documents import DocumentRef, ResourceRef
from governor.domain.reports import Report
from governor.domain.roles import Role
from governor.values.secret import MASK

PREFIX: Final = "/api/v1alpha1"


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """What the server sends. Fields that a reader does not know are passed over: it may be older than the server."""


class _Request(_Answer, frozen=True, forbid_unknown_fields=True):
    """What the server is sent. A field that it does not know is refused: a wish passed over looks granted."""


class DocumentView(_Answer, frozen=True):
    """One stored version of a document; sensitive values read ``***``. ``document`` is None when it was deleted."""

    kind: str
    name: str
    version: int
    revision: int
    document: dict[str, Any] | None


class Rollback(_Request, frozen=True, omit_defaults=True):
    """Back to what documents were at a revision, the one before the newest unless named: all of them, or some."""

    revision: int | None = None
    documents: tuple[DocumentRef, ...] = ()


class ChangeRequest(_Request, frozen=True, omit_defaults=True):
    """The only way in: documents to put whole, documents to delete, and the versions they must replace.

    A rollback stands alone: the server restores documents, since nobody else can read their sealed values.
    """

    documents: tuple[dict[str, Any], ...] = ()
    deletions: tuple[DocumentRef, ...] = ()
    message: str = ""
    dry_run: bool = False
    allow_deletions: bool = False
    if_match: dict[str, int] = {}
    rollback: Rollback | None = None


class RuntimeView(_Answer, frozen=True):
    """A runtime with its state. ``sequence`` is 0 until something was meant for it."""

    name: str
    platform: str
    labels: dict[str, str]
    sequence: int
    attempt: int
    revision: int
    digest: str
    summary: Summary
    conditions: tuple[Condition, ...]
    report: Report | None


class FieldExplanation(_Answer, frozen=True):
    """One field, masked, and the profile that decided it; no profile decided a default. A removed one has no value."""

    path: str
    value: Any = None
    profile: str = ""
    version: int = 0
    priority: int = 0


class ResourceExplanation(_Answer, frozen=True):
    """The fields of one compiled resource."""

    resource: ResourceRef
    fields: tuple[FieldExplanation, ...]


class RuntimeExplanation(_Answer, frozen=True):
    """Why a runtime has what it has: its compiled resources and its apply policy, field by field."""

    runtime: str
    digest: str
    resources: tuple[ResourceExplanation, ...]
    apply: tuple[FieldExplanation, ...]


class PocEntity(_Answer, frozen=True):
    """A runtime in the API of the proof of concept: one Kubernetes object, or a List of them."""

    id: str
    data: dict[str, Any]


class RuntimeProgress(_Answer, frozen=True):
    """How far one runtime has come with one revision; ``seconds`` counts from accepted to this state."""

    runtime: str
    sequence: int
    summary: Summary
    done: bool
    seconds: float


class RevisionProgress(_Answer, frozen=True):
    """How far a revision is out. ``complete`` when each runtime verified it or something newer."""

    revision: int
    complete: bool
    runtimes: tuple[RuntimeProgress, ...]


class ServerStatus(_Answer, frozen=True):
    """How the server is, and how it knows whoever asks; ``failing`` says by name what is not well."""

    version: str
    time: datetime
    caller: str
    role: Role | None
    failing: dict[str, str]


class TokenRequest(_Request, frozen=True):
    """A token for a person or a program, or, with ``runtime``, a one-time token for an agent to join with."""

    name: str = ""
    role: Role | None = None
    runtime: str | None = None
    ttl_seconds: int | None = None


class TokenView(_Answer, frozen=True):
    """A token without its secret."""

    id: str
    name: str
    role: Role | None
    runtime: str | None
    created: datetime
    expires: datetime | None
    revoked: bool


class TokenCreated(_Answer, frozen=True):
    """The only answer that ever holds a token's text."""

    token: TokenView
    text: str

    def __repr__(self) -> str:
        return f"TokenCreated(token={self.token!r}, text={MASK})"


class EnrolRequest(_Request, frozen=True):
    """An agent shows its one-time secret and its public key (Ed25519, base64)."""

    runtime: str
    secret: str
    public_key: str

    def __repr__(self) -> str:
        return f"EnrolRequest(runtime={self.runtime!r}, secret={MASK}, public_key={self.public_key!r})"


class Enrolment(_Answer, frozen=True):
    """What an agent must remember: who it is and by which key deliveries are signed."""

    runtime: str
    key_id: str
    delivery_key: str


class SignedDelivery(_Answer, frozen=True):
    """A delivery as its exact JSON text, so that the signature can be checked before anything is read from it."""

    payload: str
    key_id: str
    signature: str


class DeliveryNotice(_Answer, frozen=True):
    """Says that a delivery too large for the stream waits under its sequence."""

    sequence: int


def delivery_payload(delivery: Delivery) -> str:
    """The text that is signed; equal deliveries give equal texts."""
    return msgspec.json.encode(delivery, order="sorted").decode()
