"""Conditions: every state that is shown, and their one summary."""

import enum
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from governor.domain.reports import STALLED, Evidence, Report, ResourceReport, State, WorkloadReport, overall


class Status(enum.StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Actor(enum.StrEnum):
    """The role that must act next."""

    NOBODY = "nobody"
    EDITOR = "editor"
    OPERATOR = "operator"


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One aspect of an object's state, with its reason, the actor and the evidence."""

    type: str
    status: Status
    reason: str
    message: str
    actor: Actor = Actor.NOBODY
    digest: str = ""
    since: datetime | None = None
    evidence: tuple[Evidence, ...] = ()


class Summary(msgspec.Struct, frozen=True):
    """The state of an object on one line; reason, message and actor are those of the most important condition."""

    state: str
    reason: str
    message: str
    actor: Actor


class Progress(msgspec.Struct, frozen=True):
    """The newest delivery of a runtime, as far as its conditions need it."""

    sequence: int
    digest: str
    issued: datetime


_REASONS: dict[State, tuple[Status, str, Actor, str]] = {
    State.RECEIVED: (Status.FALSE, "Received", Actor.NOBODY, "the agent has received the delivery"),
    State.PREFLIGHTED: (Status.FALSE, "Preflighted", Actor.NOBODY, "the change has passed preflight"),
    State.APPLIED: (Status.FALSE, "Applied", Actor.NOBODY, "the change is applied but not verified yet"),
    State.VERIFIED: (Status.TRUE, "Verified", Actor.NOBODY, "every resource and workload is verified"),
    State.FAILED: (Status.FALSE, "Failed", Actor.EDITOR, "the runtime could not apply the change"),
    State.UNPROVEN: (Status.UNKNOWN, "Unproven", Actor.OPERATOR, "applied, but nothing proves that it is in use"),
}
STALLED_REASONS: Final = frozenset(_REASONS[state][1] for state in STALLED)
"""Reasons of the condition ``Verified`` that only a user or a new change can resolve."""


def verified(progress: Progress | None, report: Report | None) -> Condition:
    """Return the condition ``Verified``: whether the runtime's newest delivery is proven to be in use."""
    if progress is None:
        return Condition("Verified", Status.TRUE, "NothingToVerify", "there is no configuration for this runtime")
    if report is None or (report.sequence, report.digest) != (progress.sequence, progress.digest):
        message = f"delivery {progress.sequence} is not confirmed by the agent yet"
        return Condition("Verified", Status.FALSE, "Pending", message, digest=progress.digest, since=progress.issued)
    if not report.findings:
        text = "the delivery contains nothing to verify"
        return Condition("Verified", Status.TRUE, "NothingToVerify", text, digest=report.digest, since=report.time)
    state = overall(report)
    status, reason, actor, message = _REASONS[state]
    parts = [part for part in report.findings if part.state is state]
    if state in STALLED:
        message = "; ".join(map(_describe, parts)) or message
    evidence = tuple(item for part in parts for item in part.evidence)
    return Condition("Verified", status, reason, message, actor, report.digest, report.time, evidence)


def connected(*, enrolled: bool, watching: bool, since: datetime | None, revoked: datetime | None = None) -> Condition:
    """Return the condition ``Connected``: whether the runtime's agent is watching now."""
    if watching:
        return Condition("Connected", Status.TRUE, "Watching", "the agent is watching", since=since)
    if enrolled:
        text = "the agent is not watching; check that it is running (the runtime keeps its last verified bundle)"
        return Condition("Connected", Status.FALSE, "NotWatching", text, Actor.OPERATOR, since=since)
    if revoked is not None:
        text = "the agent's key is revoked; create a join token and enrol an agent again"
        return Condition("Connected", Status.FALSE, "Revoked", text, Actor.OPERATOR, since=revoked)
    text = "no agent has enrolled; create a join token and start an agent with it"
    return Condition("Connected", Status.FALSE, "NotEnrolled", text, Actor.OPERATOR)


def summarise(conditions: Iterable[Condition]) -> Summary:
    """Summarise conditions: the state of ``Verified``, and the first unmet condition that needs action.

    A verified runtime whose agent is disconnected has both: ``Verified,NotWatching``.
    """
    ordered = sorted(conditions, key=lambda item: (item.type != "Verified", item.type))
    if not ordered:
        return Summary("Unknown", "NoConditions", "no conditions are known", Actor.NOBODY)
    first, *_ = ordered
    unmet = [item for item in ordered if item.status is not Status.TRUE]
    chosen = min(unmet, key=lambda item: item.actor is Actor.NOBODY, default=first)
    both = first.status is Status.TRUE and chosen is not first
    state = f"{first.reason},{chosen.reason}" if both else first.reason
    return Summary(state, chosen.reason, chosen.message, chosen.actor)


def _describe(part: ResourceReport | WorkloadReport) -> str:
    name = str(part.resource) if isinstance(part, ResourceReport) else part.workload
    return f"{name}: {part.evidence[-1].text}" if part.evidence else f"{name}: {part.state}"
