"""Delivers the notifications of escalated failures; each one is stored in a status before it is sent.

The controllers that write these statuses are woken by a delivery, and record it. After a crash in between it is sent
again, with the same identity.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from governor.kube.controller import Context, Controller, EventType, NamespacedName
from governor.kube.controller.views import readable
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Store
from governor.process.reconcile.reconciler import Done, Failed, Outcome
from governor.reconciler.controllers.watched import SETTINGS, is_edited, nothing_to_finalize, run_annotations
from governor.reconciler.kinds.cluster import CLUSTER, Cluster
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ModuleInstance
from governor.reconciler.notifications.delivery import Deliveries
from governor.reconciler.notifications.notification import notification_of
from governor.reconciler.resolution.catalogue import INSTANCE_INDEXES

MODULES: Final = "module-notifications"
CLUSTERS: Final = "cluster-notifications"


class Wakeups:
    """Lets one controller queue objects of another; ``run`` is a source of that other one."""

    def __init__(self) -> None:
        self.wake: Callable[[NamespacedName], None] = lambda _: None
        """Queues an object; ignored while the controller does not run."""

    async def run(self, add: Callable[[NamespacedName], None]) -> None:
        """Connect both controllers until cancelled."""
        self.wake = add
        await asyncio.Event().wait()


def module_notifications_controller(deliveries: Deliveries, writer: Wakeups) -> Controller[ModuleInstance]:
    """Return the controller for modules; ``writer`` is the controller that writes their status."""

    async def reconcile(context: Context[ModuleInstance]) -> Outcome:
        ref = ObjectRef(GROUP, CLUSTER.kind, context.key.namespace, context.object.spec.cluster)
        return await _deliver(context, readable(context.store(Cluster).get(ref)), deliveries, writer)

    controller = Controller(
        MODULES,
        MODULE_INSTANCE.resource,
        ModuleInstance,
        reconcile,
        settings=SETTINGS,
        finalize=nothing_to_finalize,
        indexes=INSTANCE_INDEXES,
    )
    controller.watches(CLUSTER.resource, Cluster, on_cluster, predicate=is_edited)
    return controller.watches(
        MODULE_INSTANCE.resource, ModuleInstance, itself, predicate=is_failure_changed, indexes=INSTANCE_INDEXES
    )


def cluster_notifications_controller(deliveries: Deliveries, writer: Wakeups) -> Controller[Cluster]:
    """Return the controller for Clusters; ``writer`` is the controller that writes their status."""

    async def reconcile(context: Context[Cluster]) -> Outcome:
        return await _deliver(context, context.object, deliveries, writer)

    controller = Controller(
        CLUSTERS, CLUSTER.resource, Cluster, reconcile, settings=SETTINGS, finalize=nothing_to_finalize
    )
    return controller.watches(CLUSTER.resource, Cluster, itself, predicate=is_failure_changed)


async def _deliver(
    context: Context[ModuleInstance] | Context[Cluster],
    cluster: Cluster | None,
    deliveries: Deliveries,
    writer: Wakeups,
) -> Outcome:
    notification, failure = notification_of(context.object), context.object.status.failure
    if notification is None or failure is None or cluster is None:
        return Done()
    before = deliveries.received(notification.id)
    outcome = await deliveries.deliver(notification, cluster.spec.sinks, failure.notified)
    if deliveries.received(notification.id) != before:
        writer.wake(NamespacedName(context.key.namespace, context.key.name))
    if isinstance(outcome, Failed):
        annotations = run_annotations(context.object.status.run)
        context.event("NotNotified", f"not notified: {outcome.error}", EventType.WARNING, annotations)
    return outcome


def itself(subject: ModuleInstance | Cluster, _: Store[ModuleInstance] | Store[Cluster]) -> list[NamespacedName]:
    """Return the object itself: a change of the status alone reconciles no object."""
    return [NamespacedName(subject.metadata.namespace, subject.metadata.name)]


def is_failure_changed(old: ModuleInstance | Cluster, new: ModuleInstance | Cluster) -> bool:
    """Return whether the failure of an object has changed."""
    return old.status.failure != new.status.failure


def on_cluster(cluster: Cluster, instances: Store[ModuleInstance]) -> Iterable[NamespacedName]:
    """Return the ModuleInstances on a Cluster with a failure: its sinks may have changed."""
    found = [view for each in instances.find("cluster", cluster.metadata.name) if (view := readable(each))]
    return [NamespacedName(each.metadata.namespace, each.metadata.name) for each in found if each.status.failure]
