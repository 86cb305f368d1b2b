"""Reports of an agent on one delivery, with evidence. A report acknowledges if everything in it is verified."""

import enum
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from governor.domain.documents import ResourceRef

Instant: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with a time zone, so that the times of two machines can be compared."""


class State(enum.StrEnum):
    """The progress of a resource or workload with one delivery."""

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
    """Return the worst of some states, VERIFIED if there are none."""
    return min(states, key=WORST_FIRST.index, default=State.VERIFIED)


class Evidence(msgspec.Struct, frozen=True):
    """An observation, with its source and time."""

    source: str
    time: Instant
    text: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one part of a delivery, with its evidence."""

    state: State
    evidence: tuple[Evidence, ...] = ()


class ResourceReport(Finding, frozen=True, kw_only=True):
    """The state of one resource; a removed resource is verified when it is gone."""

    resource: ResourceRef


class WorkloadReport(Finding, frozen=True, kw_only=True):
    """The state of one workload, such as a sidecar, under this delivery."""

    workload: str


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """One report of an agent. ``n`` increases within one boot; the highest n of a boot and attempt wins."""

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
        """Return the findings on resources and workloads."""
        return (*self.resources, *self.workloads)


def acknowledged(report: Report) -> bool:
    """Whether every finding is verified; also true without findings."""
    return all(part.state is State.VERIFIED for part in report.findings)


def overall(report: Report) -> State:
    """Return the worst state of a report's findings."""
    return worst(part.state for part in report.findings)


def supersedes(new: Report, old: Report | None) -> bool:
    """Whether a report replaces the stored one; a repeated or late report does not."""
    if old is None or (new.sequence, new.attempt) != (old.sequence, old.attempt):
        return old is None or (new.sequence, new.attempt) > (old.sequence, old.attempt)
    return new.n > old.n if new.boot == old.boot else (new.time, new.boot) > (old.time, old.boot)
