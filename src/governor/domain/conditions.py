"""Conditions: every state that is shown, and their one summary."""

import enum
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from governor.domain.reports import (
    STALLED,
    Cause,
    Evidence,
    Finding,
    Report,
    ResourceReport,
    State,
    WorkloadReport,
    overall,
)
from governor.domain.windows import HELD, WAITING_FOR_WINDOW, Hold, Restraint, hold_restraint


class Status(enum.StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Actor(enum.StrEnum):
    """The role that must act next."""

    NOBODY = "nobody"
    EDITOR = "editor"
    """The author of the configuration of runtimes."""
    USER = "user"
    """The user of a cluster, who enables modules in it."""
    OPERATOR = "operator"
    """Who runs the product and provides the clusters and modules."""


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One aspect of an object's state, with its reason, the actor and the evidence.

    ``checked`` is when it was last found to be unchanged, ``until`` when it is expected to change by itself.
    """

    type: str
    status: Status
    reason: str
    message: str
    actor: Actor = Actor.NOBODY
    digest: str = ""
    since: datetime | None = None
    evidence: tuple[Evidence, ...] = ()
    checked: datetime | None = None
    until: datetime | None = None


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of an object on one line; all else is that of the most important condition."""

    state: str
    reason: str
    message: str
    actor: Actor
    until: datetime | None = None


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
_FAILURES: dict[Cause, tuple[Status, str, Actor, str]] = {
    Cause.AGENT: (Status.FALSE, "AgentFailed", Actor.OPERATOR, "the agent could not apply the change and retries"),
    Cause.RUNTIME: (Status.FALSE, "Unhealthy", Actor.OPERATOR, "the runtime no longer uses what was verified"),
}
"""Failures that are not due to the change."""
PENDING: Final = "Pending"
"""The reason of ``Verified`` until the agent has reported on the newest delivery."""
STALLED_REASONS: Final = frozenset({"Failed", "Unproven", "Unhealthy"})
"""Reasons of ``Verified`` on which ``apply`` stops waiting and exits with 1."""
PROBLEM_REASONS: Final = STALLED_REASONS | {"AgentFailed"}
"""Reasons of ``Verified`` that ``doctor`` reports as problems."""
WAITING_REASONS: Final = frozenset({HELD, WAITING_FOR_WINDOW})
"""Reasons of conditions that change by themselves at a known time: neither progress nor a problem."""
RUNTIME_STATES: Final = (
    *(reason for _, reason, _, _ in (*_REASONS.values(), *_FAILURES.values())),
    PENDING,
    "NothingToVerify",
    *sorted(WAITING_REASONS),
    "Waiting",
    "NotWatching",
    "NotEnrolled",
    "Revoked",
    "AgentOutdated",
)
"""States in which runtimes can be listed."""


def verified(
    progress: Progress | None, report: Report | None, held_sequence: int | None = None, checked: datetime | None = None
) -> Condition:
    """Return the condition ``Verified``: whether the runtime's newest delivery is proven to be in use.

    ``held_sequence`` is that of the delivery that a connected agent holds: another one is not verified, whatever was
    reported.
    ``checked`` is when the agent last found the report to be still true.
    """
    is_reported = (
        report is not None
        and progress is not None
        and (report.sequence, report.digest) == (progress.sequence, progress.digest)
    )
    return verified_by(progress, reported(report) if report and is_reported else None, held_sequence, checked)


def verified_by(
    progress: Progress | None,
    condition: Condition | None,
    held_sequence: int | None = None,
    checked: datetime | None = None,
) -> Condition:
    """Return ``verified`` if the report on the newest delivery is known only by its condition; None: no report."""
    if progress is None:
        return Condition("Verified", Status.TRUE, "NothingToVerify", "there is no configuration for this runtime")
    if condition is None or held_sequence not in (None, progress.sequence):
        message = f"delivery {progress.sequence} is not confirmed by the agent yet"
        return Condition("Verified", Status.FALSE, PENDING, message, digest=progress.digest, since=progress.issued)
    return msgspec.structs.replace(condition, checked=checked)


def reported(report: Report) -> Condition:
    """Return the condition ``Verified`` as far as it depends only on a report."""
    if not report.findings:
        text = "the delivery contains nothing to verify"
        return Condition("Verified", Status.TRUE, "NothingToVerify", text, digest=report.digest, since=report.time)
    state, restraint = overall(report), report.waits_for
    parts = [part for part in report.findings if part.state is state]
    evidence = tuple(item for part in parts for item in part.all_evidence)
    if restraint is not None and state not in STALLED:
        return _waiting(report, restraint, evidence)
    status, reason, actor, message = _explanation(state, parts)
    if state in STALLED:
        message = "; ".join(map(_describe, parts)) or message
    if restraint is not None:
        message = f"{message}; delivery {report.sequence} waits: {restraint.message}"
    return Condition("Verified", status, reason, message, actor, report.digest, report.time, evidence)


def accepted(revision: int, digest: str, since: datetime) -> Condition:
    """Return the condition ``Verified`` of a runtime whose newest delivery is not issued yet."""
    message = f"revision {revision} is accepted; its delivery is not issued yet"
    return Condition("Verified", Status.FALSE, PENDING, message, digest=digest, since=since)


def _waiting(report: Report, restraint: Restraint, evidence: tuple[Evidence, ...]) -> Condition:
    return Condition(
        "Verified",
        Status.FALSE,
        # An agent of a later version may have other reasons.
        restraint.reason if restraint.reason in WAITING_REASONS else "Waiting",
        f"delivery {report.sequence} waits: {restraint.message}",
        digest=report.digest,
        since=report.time,
        evidence=evidence,
        until=restraint.until,
    )


def changeable(hold: Hold | None, reported_restraint: Restraint | None, now: datetime) -> Condition | None:
    """Return the condition ``Changeable`` of a runtime that is held, by its document or in its cluster, or None."""
    known = (hold_restraint(hold, now), reported_restraint)
    holds = [each for each in known if each is not None and each.reason == HELD and each.until is not None]
    restraint = max(holds, key=lambda each: each.until or now, default=None)
    if restraint is None or restraint.until is None or restraint.until <= now:
        return None
    return Condition("Changeable", Status.FALSE, HELD, restraint.message, until=restraint.until)


def connected(
    *,
    enrolled: bool,
    watching: bool,
    since: datetime | None,
    revoked: datetime | None = None,
    refusal: str = "",
) -> Condition:
    """Return the condition ``Connected``: whether the runtime's agent is watching now.

    ``refusal`` is why the server rejected its last watch: the agent has none of the formats that its delivery needs.
    """
    if watching:
        return Condition("Connected", Status.TRUE, "Watching", "the agent is watching", since=since)
    if enrolled and refusal:
        return Condition("Connected", Status.FALSE, "AgentOutdated", refusal, Actor.OPERATOR, since=since)
    if enrolled:
        text = "the agent is not watching; check that it is running (the runtime keeps its last verified bundle)"
        return Condition("Connected", Status.FALSE, "NotWatching", text, Actor.OPERATOR, since=since)
    if revoked is not None:
        text = "the agent's key is revoked; create a join token and restart the agent with it"
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
    return Summary(state, chosen.reason, chosen.message, chosen.actor, chosen.until)


def is_in_state(state: str, summary: Summary, conditions: Iterable[Condition]) -> bool:
    """Return whether the summary names a state, or an unmet condition has it as its reason."""
    unmet = (each.reason for each in conditions if each.status is not Status.TRUE)
    return state in summary.state.split(",") or state in unmet


def _explanation(state: State, parts: Sequence[Finding]) -> tuple[Status, str, Actor, str]:
    """Return the explanation of a state; a failure that the change causes comes first."""
    causes = {part.cause for part in parts}
    if state is not State.FAILED or causes & {None, Cause.CHANGE}:
        return _REASONS[state]
    return _FAILURES[Cause.RUNTIME if Cause.RUNTIME in causes else Cause.AGENT]


def _describe(part: ResourceReport | WorkloadReport) -> str:
    name = str(part.resource if isinstance(part, ResourceReport) else part.workload)
    evidence = part.all_evidence
    return f"{name}: {evidence[-1].text}" if evidence else f"{name}: {part.state}"
