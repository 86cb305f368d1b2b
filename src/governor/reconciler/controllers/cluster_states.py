"""Writes the status of each Cluster: the seed of every overview, and what other programs watch."""

from collections.abc import Callable
from typing import Final

import msgspec

from governor.kube.controller import Context, Controller, EventType, NamespacedName
from governor.kube.controller.views import readable
from governor.kube.reflector import Entry, Store
from governor.process.clock import Clock
from governor.process.reconcile.reconciler import Outcome, Requeue
from governor.process.telemetry.logging import correlation_id
from governor.reconciler.controllers.clusters import all_clusters, cluster_of, clusters_of
from governor.reconciler.controllers.demand import Demand
from governor.reconciler.controllers.notifications import Wakeups
from governor.reconciler.controllers.watched import (
    SETTINGS,
    Pace,
    SecretSource,
    catalogue_of,
    is_edited,
    nothing_to_finalize,
    run_annotations,
    secret_version,
    stamped,
)
from governor.reconciler.core_kinds import SECRETS
from governor.reconciler.kinds.channel import CHANNEL, Channel
from governor.reconciler.kinds.cluster import CLUSTER, Cluster, ClusterStatus
from governor.reconciler.kinds.failure import ESCALATED, Failure
from governor.reconciler.kinds.installation import INSTALLATION, Installation
from governor.reconciler.kinds.module import MODULE, Module
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ModuleInstance
from governor.reconciler.kinds.state import State
from governor.reconciler.notifications.delivery import Deliveries
from governor.reconciler.notifications.notification import notification_id
from governor.reconciler.resolution.catalogue import INSTALLATION_INDEXES, INSTANCE_INDEXES
from governor.reconciler.resolution.resolution import resolve
from governor.reconciler.states.cluster_state import Observed, Reach, cluster_status, next_cluster_failure
from governor.reconciler.states.escalation import escalation_event
from governor.reconciler.states.totals import Totals
from governor.reconciler.targets import Reachability, due_after_s

NAME: Final = "cluster-states"
INTERVAL_S: Final = 1.0
"""The shortest time between two runs for one Cluster: while many modules change, only their newest state is written."""
_PROBING_S: Final = 0.1
"""Interval at which the result of a probe is read."""
_ALARMING: Final = frozenset({State.WARNING, State.ERROR, State.UNKNOWN})


def cluster_states_controller(
    clock: Clock,
    reachability: Reachability,
    unknown_after_s: float,
    forget: Callable[[str], None],
    deliveries: Deliveries,
    wakeups: Wakeups,
    demand: Demand,
    totals: Totals,
) -> Controller[Cluster]:
    """Return the controller; ``forget`` is called with the name of a Cluster that is gone."""
    pace = Pace(clock, INTERVAL_S)
    written: dict[str, _Inputs] = {}

    async def reconcile(context: Context[Cluster]) -> Outcome:
        cluster = context.object
        reach = reachability.observe(cluster, _access_version(context))
        if reach is None:
            return Requeue(_PROBING_S)
        if wait_s := pace.wait_s(context.key.name):
            return Requeue(wait_s)
        known = notification_id(cluster.status.failure)
        inputs = _inputs(context, reach, deliveries.received(known))
        demand.set(f"removal/{context.key.name}", _removal(context))
        if reach.problem or not inputs.is_same(written.get(context.key.name)):
            failure = next_cluster_failure(cluster, reach, inputs.notified, correlation_id(), clock.now())
            status = await _write(context, reach, clock, unknown_after_s, failure)
            totals.put(context.key.name, status, _escalated(context, failure))
            if notification_id(failure) != known:
                deliveries.forget(known)
            written[context.key.name] = inputs
        return Requeue(_PROBING_S if reachability.is_probing(context.key.name) else due_after_s(reach))

    async def finalize(context: Context[Cluster | None]) -> Outcome:
        pace.forget(context.key.name)
        demand.set(f"removal/{context.key.name}", "")
        written.pop(context.key.name, None)
        totals.forget(context.key.name)
        reachability.forget(context.key.name)
        forget(context.key.name)
        return await nothing_to_finalize(context)

    controller = Controller(NAME, CLUSTER.resource, Cluster, reconcile, settings=SETTINGS, finalize=finalize)
    controller.follows(wakeups.run)
    controller.watches(
        INSTALLATION.resource, Installation, clusters_of, predicate=is_edited, indexes=INSTALLATION_INDEXES
    )
    controller.watches(CHANNEL.resource, Channel, all_clusters, predicate=is_edited)
    controller.watches(MODULE.resource, Module, all_clusters)
    controller.watches(SECRETS, SecretSource, clusters_with_secret)
    return controller.watches(MODULE_INSTANCE.resource, ModuleInstance, cluster_of, indexes=INSTANCE_INDEXES)


def _escalated(context: Context[Cluster], failure: Failure | None) -> int:
    """Return the number of escalated failures of a cluster and its modules."""
    found = map(readable, context.store(ModuleInstance).find("cluster", context.key.name))
    failures = [failure, *(each.status.failure for each in found if each)]
    return sum(each is not None and each.is_escalated for each in failures)


def _removal(context: Context[Cluster]) -> str:
    """Return which module is being removed, or ``""``: a process that only watches starts no run for it."""
    found = context.store(ModuleInstance).find("cluster", context.key.name)
    return next((f"{each.metadata.name} is being removed" for each in found if _is_deleted(each)), "")


def _is_deleted(entry: Entry[ModuleInstance]) -> bool:
    view = readable(entry)
    return view is not None and bool(view.metadata.deletion_timestamp)


def clusters_with_secret(secret: SecretSource, clusters: Store[Cluster]) -> list[NamespacedName]:
    """Return the Clusters whose kubeconfig is in a Secret."""
    return [
        NamespacedName(ref.namespace, ref.name)
        for ref, entry in clusters.items()
        if isinstance(entry, Cluster) and _secret_name(entry) == secret.metadata.name
    ]


def _secret_name(cluster: Cluster) -> str:
    secret = cluster.spec.access.kubeconfig_secret
    return secret.name if secret else ""


def _access_version(context: Context[Cluster]) -> str:
    name = _secret_name(context.object)
    return secret_version(context, name) if name else ""


class _Inputs(msgspec.Struct, frozen=True):
    """What the status of a Cluster that answers is made of."""

    cluster: Cluster
    reach: Reach
    changes: tuple[int, ...]
    """Number of changes of everything that modules are resolved from."""
    notified: frozenset[str]
    """Sinks that have received the notification about the cluster itself."""

    def is_same(self, other: "_Inputs | None") -> bool:
        """Return whether the status is the same: after a probe that found nothing new it need not be computed."""
        return (
            other is not None
            and self.cluster is other.cluster
            and (self.reach, self.changes, self.notified) == (other.reach, other.changes, other.notified)
        )


def _inputs(context: Context[Cluster], reach: Reach, notified: frozenset[str]) -> _Inputs:
    stores = (context.store(each) for each in (Installation, Channel, Module, ModuleInstance))
    return _Inputs(context.object, reach, tuple(each.changes for each in stores), notified)


async def _write(
    context: Context[Cluster], reach: Reach, clock: Clock, unknown_after_s: float, failure: Failure | None
) -> ClusterStatus:
    """Write the status of a Cluster if it has changed, and return it."""
    cluster, catalogue = context.object, catalogue_of(context)
    placements = resolve(catalogue, cluster).placements
    instances = catalogue.instances_on(cluster.metadata.name)
    observed = Observed(
        {each.module: each for each in placements},
        {each.metadata.name.partition(".")[0]: each for each in instances},
    )
    status = cluster_status(cluster, observed, reach, clock.now(), unknown_after_s, failure)
    status = stamped(cluster.status, status, cluster.metadata.generation, clock.now())
    if not await context.write_status(status):
        return status
    annotations = run_annotations(status.run)
    if status.state is not None and status.state is not cluster.status.state:
        event_type = EventType.WARNING if status.state in _ALARMING else EventType.NORMAL
        context.event(status.state, status.message, event_type, annotations)
    if event := escalation_event(cluster.status.failure, failure):
        event_type = EventType.WARNING if event is ESCALATED else EventType.NORMAL
        context.event(event, status.message, event_type, annotations)
    return status
