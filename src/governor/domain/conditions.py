"""Conditions: every state shown anywhere, and the one summary of them."""

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
    """Who must act next."""

    NOBODY = "nobody"
    EDITOR = "editor"
    OPERATOR = "operator"


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One statement about a thing, with its reason, who must act, and the evidence for it."""

    type: str
    status: Status
    reason: str
    message: str
    actor: Actor = Actor.NOBODY
    digest: str = ""
    since: datetime | None = None
    evidence: tuple[Evidence, ...] = ()


class Summary(msgspec.Struct, frozen=True):
    """One line for a person: ``state`` says how far a thing is, the rest is of the condition that matters most."""

    state: str
    reason: str
    message: str
    actor: Actor


class Progress(msgspec.Struct, frozen=True):
    """What the server knows of a runtime's newest delivery when it states conditions."""

    sequence: int
    digest: str
    issued: datetime


_REASONS: dict[State, tuple[Status, str, Actor, str]] = {
    State.RECEIVED: (Status.FALSE, "Received", Actor.NOBODY, "the agent has the delivery and has not applied it yet"),
    State.PREFLIGHTED: (Status.FALSE, "Preflighted", Actor.NOBODY, "the change passed preflight, not applied yet"),
    State.APPLIED: (Status.FALSE, "Applied", Actor.NOBODY, "the change is applied and not verified yet"),
    State.VERIFIED: (Status.TRUE, "Verified", Actor.NOBODY, "every resource and workload is verified"),
    State.FAILED: (Status.FALSE, "Failed", Actor.EDITOR, "the runtime could not take the change"),
    State.UNPROVEN: (Status.UNKNOWN, "Unproven", Actor.OPERATOR, "applied, but nothing proves that it is in use"),
}


STALLED_REASONS: Final = frozenset(_REASONS[state][1] for state in STALLED)
"""Reasons of the condition ``Verified`` that only a user or a new change can resolve."""


def verified(progress: Progress | None, report: Report | None) -> Condition:
    """The condition ``Verified`` of a runtime: is its newest delivery really in use?"""
    if progress is None:
        return Condition("Verified", Status.TRUE, "NothingToVerify", "no configuration is meant for this runtime")
    if report is None or (report.sequence, report.digest) != (progress.sequence, progress.digest):
        message = f"delivery {progress.sequence} is not confirmed by the agent yet"
        return Condition("Verified", Status.FALSE, "Pending", message, digest=progress.digest, since=progress.issued)
    if not report.findings:
        text = "the delivery holds nothing to verify"
        return Condition("Verified", Status.TRUE, "NothingToVerify", text, digest=report.digest, since=report.time)
    state = overall(report)
    status, reason, actor, message = _REASONS[state]
    parts = [part for part in report.findings if part.state is state]
    if state in STALLED:
        message = "; ".join(map(_told, parts)) or message
    evidence = tuple(item for part in parts for item in part.evidence)
    return Condition("Verified", status, reason, message, actor, report.digest, report.time, evidence)


def connected(*, enrolled: bool, watching: bool, since: datetime | None, revoked: datetime | None = None) -> Condition:
    """The condition ``Connected`` of a runtime: can the server reach its agent now?"""
    if watching:
        return Condition("Connected", Status.TRUE, "Watching", "the agent holds its watch open", since=since)
    if enrolled:
        text = "the agent holds no watch, see that it runs; the runtime works on with its last verified bundle"
        return Condition("Connected", Status.FALSE, "NotWatching", text, Actor.OPERATOR, since=since)
    if revoked is not None:
        text = "the agent's key was revoked; create a join token and let an agent join anew"
        return Condition("Connected", Status.FALSE, "Revoked", text, Actor.OPERATOR, since=revoked)
    text = "no agent has enrolled; create a join token and start one"
    return Condition("Connected", Status.FALSE, "NotEnrolled", text, Actor.OPERATOR)


def summarise(conditions: Iterable[Condition]) -> Summary:
    """How far a thing is, and the condition that keeps it there: first one that somebody must act on.

    A verified runtime whose agent is away is both: ``Verified,NotWatching``.
    """
    ordered = sorted(conditions, key=lambda item: (item.type != "Verified", item.type))
    if not ordered:
        return Summary("Unknown", "NoConditions", "nothing is known", Actor.NOBODY)
    first, *_ = ordered
    lacking = [item for item in ordered if item.status is not Status.TRUE]
    chosen = min(lacking, key=lambda item: item.actor is Actor.NOBODY, default=first)
    holds_alone = first.status is Status.TRUE and chosen is not first
    state = f"{first.reason},{chosen.reason}" if holds_alone else first.reason
    return Summary(state, chosen.reason, chosen.message, chosen.actor)


def _told(part: ResourceReport | WorkloadReport) -> str:
    name = str(part.resource) if isinstance(part, ResourceReport) else part.workload
    return f"{name}: {part.evidence[-1].text}" if part.evidence else f"{name}: {part.state}"
