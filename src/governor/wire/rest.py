"""Bodies of the server's REST API, from which the OpenAPI document is generated. Errors are in ``problems``.

Nouns that are stored or decided on are excluded: they are in ``domain``.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from governor.domain.conditions import Condition, Summary
from governor.domain.documents import DocumentRef, Platform, ResourceRef
from governor.domain.inventories import Inventory
from governor.domain.reports import Report
from governor.domain.roles import Role
from governor.domain.windows import Hold, Window
from governor.values.secret import MASK

PREFIX: Final = "/api/v1alpha1"


class _Response(msgspec.Struct, frozen=True, rename="camel"):
    """Base of response bodies. Unknown fields are ignored: the client may be older than the server."""


class _Request(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base of request bodies. Unknown fields are rejected: an ignored one would look as if it took effect."""


class DocumentView(_Response, frozen=True):
    """One stored version of a document; sensitive values are ``***``. ``document`` is None for a deletion."""

    kind: str
    name: str
    version: int
    revision: int
    document: dict[str, Any] | None


class Rollback(_Request, frozen=True, omit_defaults=True):
    """A rollback of all documents, or some, to a revision; the default is the one before the newest."""

    revision: int | None = None
    documents: tuple[DocumentRef, ...] = ()


class ChangeRequest(_Request, frozen=True, omit_defaults=True):
    """A change of documents: whole documents to apply, documents to delete, and the versions that they must replace.

    A rollback excludes both: the server restores the documents, because only it can unseal their values. With
    ``all_runtimes`` the response lists every affected runtime, not only the first ones.
    """

    documents: tuple[dict[str, Any], ...] = ()
    deletions: tuple[DocumentRef, ...] = ()
    message: str = ""
    dry_run: bool = False
    allow_deletions: bool = False
    if_match: dict[str, int] = {}
    rollback: Rollback | None = None
    all_runtimes: bool = False


class RuntimeView(_Response, frozen=True, omit_defaults=True):
    """A runtime with its state. ``sequence`` is 0 until its first delivery; an expired hold is not shown."""

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
    windows: tuple[Window, ...] = ()
    hold: Hold | None = None


class InventoryView(_Response, frozen=True):
    """What the agent of a runtime found in its namespaces; ``received`` is when that last changed."""

    runtime: str
    received: datetime
    inventory: Inventory


class FieldExplanation(_Response, frozen=True):
    """One masked field and the profile that set it; a default has no profile, a removed field no value."""

    path: str
    value: Any = None
    profile: str = ""
    version: int = 0
    priority: int = 0


class ResourceExplanation(_Response, frozen=True):
    """The fields of one compiled resource."""

    resource: ResourceRef
    fields: tuple[FieldExplanation, ...]


class RuntimeExplanation(_Response, frozen=True):
    """The compiled resources and the apply policy of a runtime, with the origin of each field."""

    runtime: str
    digest: str
    resources: tuple[ResourceExplanation, ...]
    apply: tuple[FieldExplanation, ...]


class PocEntity(_Response, frozen=True):
    """A runtime in the API of the proof of concept: one Kubernetes object, or a List of them."""

    id: str
    data: dict[str, Any]


class RuntimeProgress(_Response, frozen=True):
    """The progress of one runtime with one revision.

    ``seconds`` is the time to this state from acceptance or, if the delivery was retried, from the last retry.
    """

    runtime: str
    sequence: int
    summary: Summary
    done: bool
    seconds: float


class ProgressCount(_Response, frozen=True, omit_defaults=True):
    """How many runtimes of a revision are in one state; those without an agent cannot be waited for.

    ``until`` is when the first of them is expected to continue by itself.
    """

    state: str
    done: bool
    count: int
    has_agent: bool = True
    until: datetime | None = None


class RevisionProgress(_Response, frozen=True, omit_defaults=True):
    """The progress of a revision. ``complete`` if every runtime has verified it or a newer one.

    ``counts`` are of all runtimes. ``runtimes`` are all if they are few, otherwise the first ones, with those that are
    not done before the others. ``seconds`` is the time from acceptance to the last verification so far.
    """

    revision: int
    complete: bool
    runtimes: tuple[RuntimeProgress, ...]
    counts: tuple[ProgressCount, ...] = ()
    seconds: float = 0.0


class ServerStatus(_Response, frozen=True):
    """The state of the server and the identity of the caller; ``failing`` has a reason for each failing check."""

    version: str
    time: datetime
    caller: str
    role: Role | None
    failing: dict[str, str]


class TokenRequest(_Request, frozen=True):
    """A token for a user or a program, or, with ``runtime``, a one-time join token for an agent."""

    name: str = ""
    role: Role | None = None
    runtime: str | None = None
    ttl_seconds: int | None = None


class TokenView(_Response, frozen=True, omit_defaults=True):
    """A token without its secret; a used join token counts as revoked, too."""

    id: str
    name: str
    role: Role | None
    runtime: str | None
    created: datetime
    expires: datetime | None
    revoked: bool
    used: bool = False


class TokenCreated(_Response, frozen=True):
    """A new token; no other response contains a token's text."""

    token: TokenView
    text: str

    def __repr__(self) -> str:
        return f"TokenCreated(token={self.token!r}, text={MASK})"


class EnrolRequest(_Request, frozen=True, omit_defaults=True):
    """An agent's one-time secret, its public key (Ed25519, base64) and its platform.

    Version 0.1 neither sends nor accepts a platform: its agents are all local.
    """

    runtime: str
    secret: str
    public_key: str
    platform: Platform = Platform.LOCAL

    def __repr__(self) -> str:
        described = f"public_key={self.public_key!r}, platform={self.platform.value!r}"
        return f"EnrolRequest(runtime={self.runtime!r}, secret={MASK}, {described})"


class Enrolment(_Response, frozen=True):
    """The identity of an agent and the key that signs its deliveries; the agent stores both."""

    runtime: str
    key_id: str
    delivery_key: str


class DeliveryNotice(_Response, frozen=True):
    """Announces a delivery that is too large for the stream and must be fetched by its sequence."""

    sequence: int
