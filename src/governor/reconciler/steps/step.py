"""What the steps of a ModuleInstance have in common: the work that they pass on, and how one of them halts it."""

import datetime
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError, Kind
from governor.kube.applyset import Entries, Repair, UnrecordedError
from governor.kube.applyset.inventory import CLAIM_LOST
from governor.kube.client import Client
from governor.kube.controller.conditions import FALSE
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Entry
from governor.reconciler.charts.cache import ChartCache
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.failure import FailureType
from governor.reconciler.kinds.module import Module, Readiness
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceStatus
from governor.reconciler.kinds.state import DEPLOYED, HEALTHY, RESOLVED, Problem
from governor.reconciler.release.adoption import Takeover
from governor.reconciler.release.objects import Place
from governor.reconciler.release.record import StoredRecord
from governor.reconciler.render.request import Layer, Rendered, Renderer
from governor.reconciler.watch import ClusterWatch
from governor.values.secret import Secret

TRANSIENT: Final = frozenset({Kind.UNAVAILABLE, Kind.DEADLINE, Kind.CONFLICT, Kind.EXHAUSTED})
"""Errors that usually end without an action."""
RECHECK_S: Final = 30.0
"""After this time waiting work is run again, even if no watch has reported anything."""


class Target(msgspec.Struct, frozen=True):
    """The cluster of a ModuleInstance, connected and observed."""

    place: Place
    watch: ClusterWatch
    version: str
    """Version of its API server."""


class Tools(msgspec.Struct, frozen=True):
    """What all runs share."""

    hub: Client
    """For reads in the hub namespace."""
    charts: ChartCache
    renderer: Renderer


Save: TypeAlias = Callable[[ModuleInstanceStatus], Awaitable[object]]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One run for one ModuleInstance: what it was started with, and what the steps so far have found out."""

    instance: ModuleInstance
    cluster: Entry[Cluster] | None
    module: Entry[Module] | None
    tools: Tools
    key: Secret
    """Key of digests of values."""
    save: Save
    """Writes the status in the middle of a run: before something that must not be forgotten."""
    target: Target | None = None
    """None if the cluster cannot be reached for now."""
    others: Mapping[str, Entry[ModuleInstance]] = {}
    """The other ModuleInstances on the cluster, by module."""
    kubeconfigs: Mapping[str, str] = {}
    """Names of the Secrets with kubeconfigs, and of their Clusters. No chart may read them as its values."""
    is_rollback: bool = False
    """Whether the spec of the instance is not the desired one, but that of an earlier version."""
    repairs: tuple[Repair, ...] = ()
    """Repairs of drift so far."""
    status: ModuleInstanceStatus = ModuleInstanceStatus()
    """The status as far as the steps have changed it."""
    layers: tuple[Layer, ...] = ()
    """The layers of values; set by ``read_values``."""
    values_digest: str = ""
    record: StoredRecord = StoredRecord()
    rendered: Rendered | None = None
    entries: Entries = {}
    """The applied objects."""
    takeover: Takeover | None = None
    """The adoption that is under way; set by ``find_former_owner``."""
    left_definitions: tuple[ObjectRef, ...] = ()
    """Definitions of the chart that are not the module's and stay as they are; set by ``leave_definitions``."""
    deviation: Problem | None = None
    """How the objects differ from what was applied, if that is neither repaired nor an error."""
    is_settled: bool = False
    """Whether nothing has changed since everything was applied, so that no step needs to write."""

    @property
    def on(self) -> Target:
        """The cluster; ``connect`` comes first."""
        assert self.target is not None  # noqa: S101
        return self.target

    @property
    def known_module(self) -> Module:
        """The Module; ``check_module`` comes first."""
        assert isinstance(self.module, Module)  # noqa: S101
        return self.module


def readiness_of(work: Work) -> Readiness:
    """Return when the module counts as ready; the default if its Module is gone."""
    return work.module.spec.readiness if isinstance(work.module, Module) else Readiness()


class Retry(enum.Enum):
    """When halted work is run again."""

    ON_CHANGE = "on change"
    """A watch reports the action of a user."""
    RECHECK = "recheck"
    """A watch reports it; an interval is a safeguard."""
    BACKOFF = "backoff"
    """Later and later; no watch may report it."""


class Halted(msgspec.Struct, frozen=True):
    """Why the work cannot proceed, after how many of its conditions."""

    problem: Problem
    stage: str = RESOLVED
    """Type of the condition that does not hold for now."""
    retry: Retry = Retry.ON_CHANGE
    work: Work | None = None
    """What was found out before."""
    failure: FailureType | None = None
    """Type of the failure, where the actor does not say it."""

    @property
    def failure_type(self) -> FailureType | None:
        """Return the type of the failure; None if the work only waits for something."""
        is_waiting = self.problem.actor is Actor.NOBODY and self.retry is not Retry.BACKOFF
        return self.failure or (None if is_waiting else _TYPES[self.problem.actor])


_TYPES: Final = {
    Actor.NOBODY: FailureType.TRANSIENT,
    Actor.EDITOR: FailureType.USER,
    Actor.USER: FailureType.USER,
    Actor.OPERATOR: FailureType.OPERATOR,
}


CLUSTER_PAUSED: Final = Problem(
    "Paused", "the Cluster is paused: nothing is applied, repaired or removed", Actor.NOBODY
)
MODULE_PAUSED: Final = Problem("Paused", "the Installation is paused: nothing is applied or repaired", Actor.NOBODY)


class Paused(msgspec.Struct, frozen=True):
    """Nothing may be changed on the cluster, or of the module, for now."""

    problem: Problem = CLUSTER_PAUSED


class Unreachable(msgspec.Struct, frozen=True):
    """The cluster does not answer. Its own status says that; this module's status stays what it was."""


Halt: TypeAlias = Halted | Paused | Unreachable
Step: TypeAlias = Callable[[Work], Awaitable[Work | Halt]]


def unresolved(reason: str, message: str, actor: Actor) -> Halted:
    """Return the halt for something that a user must create or correct."""
    return Halted(Problem(reason, message, actor))


def waiting(work: Work, reason: str, message: str, stage: str = DEPLOYED) -> Halted:
    """Return the halt for something that ends by itself."""
    return Halted(Problem(reason, message, Actor.NOBODY), stage, Retry.RECHECK, work)


def failing(work: Work, reason: str, error: GovernorError | str, actor: Actor, stage: str = DEPLOYED) -> Halted:
    """Return the halt for something that is tried again later."""
    return Halted(Problem(reason, str(error), actor), stage, Retry.BACKOFF, work)


def failed(work: Work, reason: str, error: GovernorError, stage: str = DEPLOYED) -> Halted:
    """Return the halt for an error: the operator must act unless it usually ends without an action."""
    if error.code == CLAIM_LOST:
        return failing(work, "Claimed", error, Actor.OPERATOR, stage)
    is_transient = isinstance(error, UnrecordedError) or error.kind in TRANSIENT
    return failing(work, reason, error, Actor.NOBODY if is_transient else Actor.OPERATOR, stage)


def unhealthy(work: Work, reason: str, message: str, actor: Actor, failure: FailureType | None = None) -> Halted:
    """Return the halt for a module that is applied and not ready."""
    return Halted(Problem(reason, message, actor), HEALTHY, Retry.RECHECK, work, failure)


def failure_reference(work: Work) -> str:
    """Return what a failure is about: generation and values. While the values are not known, those it was about."""
    generation = f"{work.instance.metadata.generation}/"
    before = work.status.failure
    if not work.values_digest and before is not None and before.reference.startswith(generation):
        return before.reference
    return f"{generation}{work.values_digest}"


def is_older(time: str, seconds: float, now: datetime.datetime) -> bool:
    """Return whether a stored time is more than so many seconds ago."""
    return (now - datetime.datetime.fromisoformat(time)).total_seconds() > seconds


def is_overdue(work: Work, condition_type: str) -> bool:
    """Return whether a condition has not held for longer than the module may take to become ready."""
    return is_unmet_for(work, condition_type, readiness_of(work).timeout_seconds)


def is_unmet_for(work: Work, condition_type: str, seconds: float) -> bool:
    """Return whether a condition has not held for so many seconds."""
    conditions = work.status.conditions
    unmet = next((each for each in conditions if each.type == condition_type and each.status == FALSE), None)
    return unmet is not None and is_older(unmet.last_transition_time, seconds, work.on.place.clock.now())


async def run(steps: Sequence[Step], work: Work, reason: str) -> Work | Halt:
    """Run the steps until one halts the work; return the completed work, or why it was halted.

    An error of a step halts the work for ``reason``, with what the steps before it have found out.
    """
    for step in steps:
        try:
            result = await step(work)
        except GovernorError as error:
            return failed(work, reason, error)
        if not isinstance(result, Work):
            return result
        work = result
    return work
