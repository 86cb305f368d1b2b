"""A notification, its identity, and its text by a template. Pure."""

import enum
import re
from typing import Final

import msgspec

from governor.errors import invalid
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.failure import Failure
from governor.reconciler.kinds.module_instance import ModuleInstance

_PLACEHOLDER: Final = re.compile(r"\$(?:\$|\{([^}]*)\})")


class Event(enum.StrEnum):
    """What a notification reports."""

    ESCALATED = "escalated"
    RESOLVED = "resolved"


class Notification(msgspec.Struct, frozen=True):
    """An escalated failure, or its end; all fields are texts."""

    id: str
    """Identity of the notification: receivers may get it more than once."""
    event: Event
    failure: str
    """Identity of the failure, the same in its escalation and resolution."""
    time: str
    """When the event happened."""
    type: str
    cluster: str
    module: str
    """Name of the module; empty if the cluster itself fails."""
    version: str
    state: str
    reason: str
    message: str
    actor: str
    since: str
    run: str
    """Correlation id of the run that has changed the status last."""


def notification_of(subject: ModuleInstance | Cluster) -> Notification | None:
    """Return what the sinks must know about an object, or None."""
    failure = subject.status.failure
    if failure is None or not (failure.escalated or failure.resolved):
        return None
    fields = {"cluster": subject.metadata.name, "module": "", "version": "", "reason": str(failure.type)}
    actor = failure.type.actor
    if isinstance(subject, ModuleInstance):
        spec, status = subject.spec, subject.status
        fields = {"cluster": spec.cluster, "module": spec.module, "version": spec.version, "reason": status.reason}
        actor = status.actor
    return Notification(
        id=notification_id(failure),
        event=_event(failure),
        failure=failure.run,
        time=failure.resolved or failure.escalated or "",
        type=str(failure.type),
        state=str(subject.status.state or ""),
        message=subject.status.message,
        actor=str(actor),
        since=failure.since,
        run=subject.status.run,
        **fields,
    )


def notification_id(failure: Failure | None) -> str:
    """Return the identity of the notification that a failure needs; empty if it needs none."""
    if failure is None or not (failure.escalated or failure.resolved):
        return ""
    return f"{failure.run}.{_event(failure)}.{failure.resolved or failure.escalated}"


def _event(failure: Failure) -> Event:
    return Event.ESCALATED if failure.resolved is None else Event.RESOLVED


def body_of(notification: Notification, template: str) -> str:
    """Return the body of a notification: by a template, or all fields as JSON. INVALID if a field is unknown."""
    fields: dict[str, str] = msgspec.to_builtins(notification)
    if not template:
        return msgspec.json.encode(fields).decode()

    def text(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "$"
        if name not in fields:
            raise invalid("template", f"the template has ${{{name}}}: only {', '.join(fields)} are known")
        return msgspec.json.encode(fields[name]).decode()[1:-1]

    return _PLACEHOLDER.sub(text, template)
