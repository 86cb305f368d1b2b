"""Failures of modules and clusters: their types, when they are escalated, and the sinks that are notified."""

import enum
from typing import Annotated, Final

import msgspec

from governor.domain.conditions import Actor
from governor.reconciler.kinds.definition import ModuleName, Part, SecretKey, Time

ESCALATED: Final = "Escalated"
"""Whether a failure has lasted longer than the Cluster's pendingTimeout."""
PENDING_TIMEOUT_S: Final = 600


class FailureType(enum.StrEnum):
    """The cause of a failure, which determines who must act."""

    USER = "User"
    """Something that the cluster's user has written or must provide."""
    OPERATOR = "Operator"
    """Something that the operator of the platform must correct."""
    TRANSIENT = "Transient"
    """An error that usually ends without an action."""
    IMMUTABLE_FIELD = "ImmutableField"
    """A field that the API server does not change."""
    QUOTA = "Quota"
    """A ResourceQuota is exhausted."""
    ADMISSION = "Admission"
    """An admission webhook or policy refuses an object."""
    NOT_SCHEDULABLE = "NotSchedulable"
    """No node has room for a pod."""
    UNREACHABLE = "Unreachable"
    """The API server of the cluster does not answer."""

    @property
    def actor(self) -> Actor:
        """Return who must act if the failure lasts."""
        return _ACTORS[self]


_ACTORS: Final = {
    FailureType.USER: Actor.USER,
    FailureType.OPERATOR: Actor.OPERATOR,
    FailureType.TRANSIENT: Actor.OPERATOR,
    FailureType.IMMUTABLE_FIELD: Actor.USER,
    FailureType.QUOTA: Actor.USER,
    FailureType.ADMISSION: Actor.USER,
    FailureType.NOT_SCHEDULABLE: Actor.USER,
    FailureType.UNREACHABLE: Actor.OPERATOR,
}


class OnTimeout(enum.StrEnum):
    """What happens when a failure has lasted longer than pendingTimeout."""

    RETRY = "retry"
    """It is retried as before, and not escalated."""
    FAIL = "fail"
    """It is escalated, and nothing more is applied until the spec or the values change."""
    ESCALATE = "escalate"
    """It is escalated and retried slowly."""


class Failure(Part, frozen=True):
    """A failure that has not ended, or whose end the sinks do not know yet."""

    type: FailureType
    """The cause of the failure."""
    since: Time
    """Since when the present spec and values fail."""
    run: str
    """Correlation id of the run in which it began; it identifies the failure in all notifications."""
    reference: str = ""
    """Generation and keyed digest of the values that fail."""
    escalated: Time | None = None
    """When it was escalated."""
    reported: bool = False
    """Whether it was escalated before, with another spec or other values."""
    resolved: Time | None = None
    """When it ended after it was escalated."""
    notified: tuple[str, ...] = ()
    """Names of the sinks that have received the escalation or, if it has ended, the resolution."""

    @property
    def is_escalated(self) -> bool:
        """Return whether it is escalated and has not ended."""
        return self.escalated is not None and self.resolved is None

    @property
    def is_open(self) -> bool:
        """Return whether sinks know of it, and not that it has ended."""
        return (self.escalated is not None or self.reported) and self.resolved is None


class Webhook(Part, frozen=True):
    """A web server that receives a POST request for each notification, until it answers with a status of 2xx."""

    url_secret: SecretKey
    """The URL, in a Secret of the hub namespace because it may contain a token: https://, or http:// on loopback."""
    token_secret: SecretKey | None = None
    """A token that is sent as `Authorization: Bearer`, in a Secret of the hub namespace."""
    ca_secret: SecretKey | None = None
    """Certificates of the authorities that the server is verified with, instead of the system's."""
    template: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """The body, with ${name} in place of the fields of a notification, which are escaped for a string of JSON; $$ is a
    dollar sign. By default all fields as JSON."""
    content_type: Annotated[str, msgspec.Meta(max_length=128)] = "application/json"
    """The type of the body."""


class Sink(Part, frozen=True):
    """Where escalated failures are reported, for example as support tickets."""

    name: ModuleName
    """Name of the sink."""
    webhook: Webhook
    """A web server that receives notifications."""
