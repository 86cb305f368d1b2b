"""Decisions on restarts: which workloads the agent may restart, disruption budgets, and how many at once.

``restarter`` writes them, ``records`` remembers them, ``roll`` judges whether one succeeds, ``control_plane`` whether
Dapr is fit for one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.workloads.views import ALLOW_RESTART
from governor.agent.platforms.kubernetes.workloads.workload import Update, Workload
from governor.domain.reports import WorkloadRef
from governor.kube.objects import Object
from governor.values.selectors import Expression, matches

AT_ONCE: Final = 3
_ALLOW: Final = f'annotate it with {ALLOW_RESTART}: "true"'

_BY_EVICTION: Final = frozenset({Update.ON_DELETE, Update.NONE})
_REPLICA_SET: Final = ("apps/v1", "ReplicaSet")
# Dapr's injector adds them to the labels of the template.
_INJECTED_LABELS: Final = {"dapr.io/sidecar-injected": "true"}
_APP_ID: Final = "dapr.io/app-id"


def restart_hindrance(workload: Workload) -> str:
    """Return why the agent does not restart a workload and what its owner can do, or ``""``."""
    kind = workload.ref.kind
    if workload.opted_out:
        return "its owner has opted out of restarts by the agent: restart it yourself"
    if not workload.enabled:
        return "its template does not ask for a sidecar, so a restart would remove it: enable Dapr in the template"
    if workload.paused:
        return "it is paused: resume it"
    match workload.update:
        case Update.ON_DELETE if not workload.allowed:
            return f"its update strategy is OnDelete: delete its pods one after another, or {_ALLOW}"
        case Update.RECREATE if not workload.allowed:
            return (
                "its update strategy is Recreate, so a restart stops all of its pods at once: restart it yourself, or "
                f"{_ALLOW}"
            )
        case Update.PARTITIONED:
            return "its partition keeps pods from being replaced: set it to 0, or change it and then delete the pods"
        case Update.NONE if (workload.api_version, kind) != _REPLICA_SET:
            return _not_restartable(kind, workload.api_version)
        case Update.NONE if workload.desired is None:
            return "its owner is not known and may have rollouts of its own: restart it with the tool that owns it"
    return ""


def _not_restartable(kind: str, api_version: str) -> str:
    match kind:
        case "Job":
            return "the template of a Job cannot change: wait until it ends, or run it again"
        case "Pod":
            return "no controller replaces it: create it again"
    return f"the agent cannot restart a {kind} ({api_version}): restart it with its own tool"


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """A label selector of Kubernetes."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Expression, ...] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels match; an empty selector matches everything."""
        return matches(labels, self.match_labels or {}, self.match_expressions or ())


class Budget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget; ``current`` if its controller has computed these numbers for its present spec."""

    name: str
    selector: Selector | None
    allowed: int = 0
    healthy: int = 0
    needed: int = 0
    current: bool = True


class _BudgetMetadata(msgspec.Struct, frozen=True):
    name: str
    generation: int = 0


class _BudgetSpec(msgspec.Struct, frozen=True):
    selector: Selector | None = None


class _BudgetStatus(msgspec.Struct, frozen=True, rename="camel"):
    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0


class _Budget(msgspec.Struct, frozen=True):
    metadata: _BudgetMetadata
    spec: _BudgetSpec = _BudgetSpec()
    status: _BudgetStatus = _BudgetStatus()


def budget_of(manifest: Object) -> Budget:
    """Return the budget that a manifest describes."""
    read = msgspec.convert(manifest, _Budget)
    status = read.status
    return Budget(
        read.metadata.name,
        read.spec.selector,
        status.disruptions_allowed,
        status.current_healthy,
        status.desired_healthy,
        current=status.observed_generation >= read.metadata.generation,
    )


def budget_obstacle(workload: Workload, budgets: Iterable[Budget]) -> str:
    """Return why a disruption budget does not allow a restart now, or ``""``.

    Budgets count ready pods: a workload without any cannot spend one, and a restart may be its cure.
    """
    if not any(pod.ready for pod in workload.pods):
        return ""
    selecting = _selecting(workload, budgets)
    if len(selecting) > 1 and workload.update in _BY_EVICTION:
        names = ", ".join(budget.name for budget in selecting)
        return f"PodDisruptionBudgets {names} select the same pods, which evictions do not support; leave one of them"
    for budget in selecting:
        if not budget.current:
            return f"PodDisruptionBudget {budget.name} is not computed yet"
        if budget.allowed <= 0:
            return f"PodDisruptionBudget {budget.name} allows no disruption now ({_numbers(budget)})"
    return ""


def budget_violation(workload: Workload, budgets: Iterable[Budget]) -> str:
    """Return which disruption budget a running restart violates, or ``""``: a rollout does not respect budgets."""
    selecting = _selecting(workload, budgets)
    violated = (each for each in selecting if each.current and each.healthy < each.needed)
    return next((f"PodDisruptionBudget {each.name} is violated ({_numbers(each)})" for each in violated), "")


def _selecting(workload: Workload, budgets: Iterable[Budget]) -> Sequence[Budget]:
    labels = {**_INJECTED_LABELS, _APP_ID: workload.app_id, **workload.labels}
    return [budget for budget in budgets if budget.selector and budget.selector.selects(labels)]


def _numbers(budget: Budget) -> str:
    return f"{budget.healthy} healthy pods, {budget.needed} required"


class Candidate(msgspec.Struct, frozen=True):
    """A workload that is to be restarted, or is restarting.

    ``hosts_actors`` if it does or may. ``obstacle`` is why it cannot be restarted now, or what the running restart
    violates.
    """

    ref: WorkloadRef
    hosts_actors: bool = False
    obstacle: str = ""


class Admission(msgspec.Struct, frozen=True):
    """Which workloads are restarted now, and why the others wait."""

    starts: tuple[WorkloadRef, ...]
    waiting: Mapping[WorkloadRef, str]


def admit(candidates: Iterable[Candidate], running: Iterable[Candidate], at_once: int = AT_ONCE) -> Admission:
    """Choose the workloads to restart now, in their order, beside those that are restarting."""
    active, starts, waiting = list(running), [], {}
    for candidate in candidates:
        if reason := candidate.obstacle or _why_wait(candidate, active, at_once):
            waiting[candidate.ref] = reason
        else:
            active.append(candidate)
            starts.append(candidate.ref)
    return Admission(tuple(starts), waiting)


def _why_wait(candidate: Candidate, active: Sequence[Candidate], at_once: int) -> str:
    neighbours = [each for each in active if each.ref.namespace == candidate.ref.namespace]
    for other in neighbours:
        if other.obstacle:
            return f"waits for {other.ref}: {other.obstacle}"
        # Several actor hosts that leave and join at once make Dapr's placement rebalance again and again.
        if candidate.hosts_actors and other.hosts_actors:
            return f"waits for {other.ref}: only one workload with actors restarts at a time in a namespace"
    return f"waits for its turn: {at_once} workloads restart at a time" if len(active) >= at_once else ""
