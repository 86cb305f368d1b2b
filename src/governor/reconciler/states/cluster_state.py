"""The status of a Cluster: one aggregate state, conditions, and one line per module."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from governor.domain.conditions import Condition, Status
from governor.kube.controller import conditions as kube
from governor.kube.controller.views import readable
from governor.kube.reflector import Entry
from governor.reconciler.kinds.cluster import Cluster, ClusterStatus
from governor.reconciler.kinds.failure import Failure, FailureType
from governor.reconciler.kinds.module_instance import ModuleInstance
from governor.reconciler.kinds.state import DEPLOYED, HEALTHY, REACHABLE, READY, RESOLVED, ModuleLine, Problem, State
from governor.reconciler.resolution.placement import Placement
from governor.reconciler.states.conditions import met, published, shortened, unmet
from governor.reconciler.states.escalation import Seen, escalated_condition, next_failure, policy_of
from governor.reconciler.states.module_lines import by_severity, counts_of, line_of, overall
from governor.values.printing import listed

UNREACHABLE: Final = "Unreachable"
"""Reason of a cluster whose API server does not answer."""
MAX_LINES: Final = 500
"""An object in etcd has at most 1.5 MB."""

_DONE: Final = {DEPLOYED: "deployed", HEALTHY: "healthy"}


class Reach(msgspec.Struct, frozen=True):
    """Whether the API server of a cluster answered when it was last asked."""

    problem: Problem | None = None
    uid: str = ""
    version: str = ""


class Observed(msgspec.Struct, frozen=True):
    """What is known of the modules of a cluster."""

    placements: Mapping[str, Placement]
    """What is wanted, by module; of Installations in conflict, one."""
    instances: Mapping[str, Entry[ModuleInstance]]
    """What exists, by module."""

    def lines(self) -> list[ModuleLine]:
        """Return one line per module, those that need an action first."""
        modules = dict.fromkeys([*self.placements, *self.instances])
        lines = (line_of(self.placements.get(each), self.instances.get(each)) for each in modules)
        return by_severity(each for each in lines if each is not None)


def is_unreachable(cluster: Cluster) -> bool:
    """Return whether the Cluster's status says that it does not answer."""
    return _unreachable(cluster) is not None


def _unreachable(cluster: Cluster) -> kube.Condition | None:
    found = (each for each in cluster.status.conditions if each.type == REACHABLE)
    return next((each for each in found if each.status == kube.FALSE), None)


def unreachable_since(cluster: Cluster, now: datetime.datetime) -> datetime.datetime:
    """Return since when the Cluster's status says that it does not answer; now if it does not say so."""
    found = _unreachable(cluster)
    try:
        return datetime.datetime.fromisoformat(found.last_transition_time) if found else now
    except ValueError:
        return now


def cluster_status(
    cluster: Cluster,
    observed: Observed,
    reach: Reach,
    now: datetime.datetime,
    unknown_after_s: float,
    failure: Failure | None = None,
) -> ClusterStatus:
    """Return the status of a Cluster. One that has not answered for ``unknown_after_s`` is Unknown."""
    lines = observed.lines()
    away_s = (now - unreachable_since(cluster, now)).total_seconds() if reach.problem else 0.0
    if reach.problem and away_s >= unknown_after_s:
        lines = [_unknown(each) for each in lines]
        state, message = State.UNKNOWN, reach.problem.message
    else:
        state, message = overall(lines), _message(lines, reach)
        if reach.problem and not cluster.status.uid and state is State.READY:
            state = State.PENDING  # it has never answered
    if cluster.spec.paused:
        message = f"paused: {message}"
    if cluster.metadata.deletion_timestamp:
        state = State.DELETING
    counts = counts_of(lines)
    return ClusterStatus(
        conditions=(*map(published, _conditions(observed, reach, state, message)), *_escalated(failure, message)),
        state=state,
        ready=f"{counts.ready}/{counts.total}",
        message=shortened(message, 1024),
        # Of a cluster that does not answer, what it said last.
        uid=reach.uid or cluster.status.uid,
        version=reach.version or cluster.status.version,
        counts=counts,
        modules=tuple(lines[:MAX_LINES]),
        failure=failure,
        run=cluster.status.run,
    )


def _escalated(failure: Failure | None, message: str) -> Iterable[kube.Condition]:
    if failure is not None and failure.is_escalated:
        yield escalated_condition(failure, message, failure.type.actor)


def next_cluster_failure(
    cluster: Cluster, reach: Reach, notified: frozenset[str], run: str, now: datetime.datetime
) -> Failure | None:
    """Return why a cluster cannot be reached, after another probe; None if it answers."""
    found = None
    if reach.problem:
        found = FailureType.UNREACHABLE if reach.problem.reason == UNREACHABLE else FailureType.OPERATOR
    since = kube.format_time(unreachable_since(cluster, now))
    seen = Seen(found, run, since, is_ready=found is None, notified=notified)
    return next_failure(cluster.status.failure, seen, policy_of(cluster), now)


def _unknown(line: ModuleLine) -> ModuleLine:
    return ModuleLine(line.module, State.UNKNOWN, line.version, UNREACHABLE, f"last known state: {line.state}")


def _message(lines: Sequence[ModuleLine], reach: Reach) -> str:
    if reach.problem:
        return reach.problem.message
    if not lines:
        return "no module is enabled on this cluster"
    waiting = [each for each in lines if each.state is not State.READY]
    if not waiting:
        return f"all {len(lines)} modules are ready"
    first = waiting[0]
    return f"{len(waiting)} of {len(lines)} modules are not ready: {first.module}: {first.reason}: {first.message}"


def _conditions(observed: Observed, reach: Reach, state: State, message: str) -> Iterable[Condition]:
    yield _reachable(reach)
    yield _resolved(observed.placements)
    for condition_type in (DEPLOYED, HEALTHY):
        yield _of_modules(condition_type, observed)
    yield met(READY, state, message) if state is State.READY else unmet(READY, state, message)


def _reachable(reach: Reach) -> Condition:
    if reach.problem:
        return unmet(REACHABLE, reach.problem.reason, reach.problem.message)
    return met(REACHABLE, "Answers", "the API server answers")


def _resolved(placements: Mapping[str, Placement]) -> Condition:
    problems = {name: each.outcome for name, each in placements.items() if isinstance(each.outcome, Problem)}
    if not problems:
        return met(RESOLVED, RESOLVED, f"all {len(placements)} modules are resolved")
    first = next(iter(problems.values()))
    return unmet(RESOLVED, first.reason, f"{listed(problems)}: {first.message}")


def _of_modules(condition_type: str, observed: Observed) -> Condition:
    """Return whether a condition holds for all modules; it is unknown while that of one is, and none is false."""
    modules = sorted({*observed.placements, *observed.instances})
    found = {each: _status(readable(observed.instances.get(each)), condition_type) for each in modules}
    done = _DONE[condition_type]
    if false := [name for name, status in found.items() if status is Status.FALSE]:
        return unmet(condition_type, f"Not{condition_type}", f"{len(false)} modules are not {done}: {listed(false)}")
    if unknown := [name for name, status in found.items() if status is Status.UNKNOWN]:
        message = f"{len(unknown)} modules have not reported that they are {done}: {listed(unknown)}"
        return Condition(condition_type, Status.UNKNOWN, "NotReported", message)
    return met(condition_type, condition_type, f"all {len(found)} modules are {done}")


def _status(instance: ModuleInstance | None, condition_type: str) -> Status:
    """Return the status of a module's condition; one of an older generation says nothing."""
    conditions = instance.status.conditions if instance else ()
    found = next((each for each in conditions if each.type == condition_type), None)
    if instance is None or found is None or found.observed_generation != instance.metadata.generation:
        return Status.UNKNOWN
    return Status(found.status) if found.status in set(Status) else Status.UNKNOWN
