"""Reports: what an agent saw of one delivery, with evidence. Acknowledged means that everything is verified."""

import enum
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from governor.domain.documents import ResourceRef

Instant: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its zone; without one, the times of two machines cannot be compared."""


class State(enum.StrEnum):
    """How far a resource or workload has come with one delivery."""

    RECEIVED = "received"
    PREFLIGHTED = "preflighted"
    APPLIED = "applied"
    VERIFIED = "verified"
    FAILED = "failed"
    UNPROVEN = "unproven"


WORST_FIRST: Final = (
    State.FAILED,
    State.UNPROVEN,
    State.RECEIVED,
    State.PREFLIGHTED,
    State.APPLIED,
    State.VERIFIED,
)
STALLED: Final = frozenset({State.FAILED, State.UNPROVEN})
"""States that only a user or a new change can leave: the agent has stopped without verifying."""


def worst(states: Iterable[State]) -> State:
    """Return the worst of some states; none count as verified."""
    return min(states, key=WORST_FIRST.index, default=State.VERIFIED)


class Evidence(msgspec.Struct, frozen=True):
    """What was seen, where and when."""

    source: str
    time: Instant
    text: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """How far one part of a delivery has come, and what shows it."""

    state: State
    evidence: tuple[Evidence, ...] = ()


class ResourceReport(Finding, frozen=True, kw_only=True):
    """The state of one resource; a removed resource is verified when it is gone."""

    resource: ResourceRef


class WorkloadReport(Finding, frozen=True, kw_only=True):
    """The state of one workload, such as a sidecar, under this delivery."""

    workload: str


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """One report of an agent. ``n`` counts within one boot; the highest n per boot and attempt counts."""

    runtime: str
    sequence: int
    attempt: int
    digest: str
    boot: str
    n: int
    time: Instant
    agent: str
    resources: tuple[ResourceReport, ...]
    workloads: tuple[WorkloadReport, ...]
    format: Literal[1] = 1

    @property
    def findings(self) -> tuple[ResourceReport | WorkloadReport, ...]:
        """Everything in scope."""
        return (*self.resources, *self.workloads)


def acknowledged(report: Report) -> bool:
    """Whether everything in scope is verified; nothing in scope counts as verified."""
    return all(part.state is State.VERIFIED for part in report.findings)


def overall(report: Report) -> State:
    """Return the worst state of any part of a report."""
    return worst(part.state for part in report.findings)


def supersedes(new: Report, old: Report | None) -> bool:
    """Whether a report replaces the kept one; a repeated or late one does not."""
    if old is None or (new.sequence, new.attempt) != (old.sequence, old.attempt):
        return old is None or (new.sequence, new.attempt) > (old.sequence, old.attempt)
    return new.n > old.n if new.boot == old.boot else (new.time, new.boot) > (old.time, old.boot)
