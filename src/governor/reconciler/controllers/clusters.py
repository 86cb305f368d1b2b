"""Keeps the ModuleInstances of each Cluster as its Installations require.

What cannot be resolved or read stays as it is; ``removal`` decides what may be removed.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from governor.kube.controller import Context, Controller, EventType, NamespacedName
from governor.kube.controller.finalizer import FINALIZED
from governor.kube.objects import Object, ObjectRef
from governor.kube.reflector import Store, Unreadable
from governor.process.clock import Clock
from governor.process.reconcile.reconciler import Done, Failed, Outcome, Requeue, Waiting
from governor.reconciler.controllers.removal import confirm_removal
from governor.reconciler.controllers.watched import SETTINGS, Pace, catalogue_of, is_edited, names_of
from governor.reconciler.kinds.channel import CHANNEL, Channel
from governor.reconciler.kinds.cluster import CLUSTER, Cluster
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.installation import INSTALLATION, Installation
from governor.reconciler.kinds.module import MODULE, Module
from governor.reconciler.kinds.module_instance import (
    CLUSTER_LABEL,
    INSTALLATION_LABEL,
    MODULE_INSTANCE,
    MODULE_LABEL,
    OWNER_LABEL,
    ModuleInstance,
    ModuleInstanceSpec,
    instance_name,
)
from governor.reconciler.kinds.module_instance import (
    FINALIZER as MODULE_FINALIZER,
)
from governor.reconciler.kinds.state import State
from governor.reconciler.resolution.catalogue import INSTALLATION_INDEXES, INSTANCE_INDEXES, Catalogue
from governor.reconciler.resolution.resolution import Resolution, dependency_levels, resolve
from governor.values.digest import canonical
from governor.values.printing import listed

NAME: Final = "clusters"
FINALIZER: Final = f"{GROUP}/cluster"
INTERVAL_S: Final = 0.5
"""The shortest time between two runs for one Cluster. While many Installations are created, each run places several."""
RECHECK_S: Final = 10.0


def clusters_controller(clock: Clock) -> Controller[Cluster]:
    """Return the controller."""
    pace = Pace(clock, INTERVAL_S)

    async def reconcile(context: Context[Cluster]) -> Outcome:
        wait_s = pace.wait_s(context.key.name)
        return Requeue(wait_s) if wait_s else await _place(context)

    async def finalize(context: Context[Cluster | None]) -> Outcome:
        pace.forget(context.key.name)
        return await _remove(context)

    controller = Controller(
        NAME,
        CLUSTER.resource,
        Cluster,
        reconcile,
        settings=SETTINGS,
        finalize=finalize,
        finalizer=FINALIZER,
        recheck_s=RECHECK_S,
    )
    controller.watches(
        INSTALLATION.resource, Installation, clusters_of, predicate=is_edited, indexes=INSTALLATION_INDEXES
    )
    controller.watches(CHANNEL.resource, Channel, all_clusters, predicate=is_edited)
    controller.watches(MODULE.resource, Module, all_clusters)
    return controller.watches(
        MODULE_INSTANCE.resource, ModuleInstance, cluster_of, predicate=is_edited, indexes=INSTANCE_INDEXES
    )


def clusters_of(installation: Installation, clusters: Store[Cluster]) -> list[NamespacedName]:
    """Return the Clusters that an Installation selects."""
    found = [each for each in clusters.values() if not isinstance(each, Unreadable)]
    return [
        NamespacedName(each.metadata.namespace, each.metadata.name)
        for each in found
        if installation.selects(each.metadata.name, each.metadata.labels)
    ]


def all_clusters(_: object, clusters: Store[Cluster]) -> Iterable[NamespacedName]:
    """Return all Clusters: any of them may have an Installation that depends on a Channel or Module."""
    return names_of(clusters)


def cluster_of(instance: ModuleInstance, _: Store[Cluster]) -> list[NamespacedName]:
    """Return the Cluster of a ModuleInstance."""
    return [NamespacedName(instance.metadata.namespace, instance.spec.cluster)]


def manifest_of(spec: ModuleInstanceSpec, namespace: str) -> Object:
    """Return the manifest of a ModuleInstance."""
    name = instance_name(spec.module, spec.cluster)
    metadata = {"name": name, "namespace": namespace, "labels": _labels(spec), "finalizers": [MODULE_FINALIZER]}
    resource = MODULE_INSTANCE.resource
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "spec": msgspec.to_builtins(spec),
    }


def _labels(spec: ModuleInstanceSpec) -> dict[str, str]:
    return {MODULE_LABEL: spec.module, CLUSTER_LABEL: spec.cluster, INSTALLATION_LABEL: spec.installation}


def is_current(resolution: Resolution, catalogue: Catalogue) -> bool:
    """Return whether the cached ModuleInstances are the desired ones, so that there is nothing to do."""
    if any(OWNER_LABEL in each.metadata.labels for each in resolution.removed):
        return False
    return all(
        _is_as_desired(catalogue.instance(each.module, each.cluster), each) for each in resolution.instances.values()
    )


def _is_as_desired(entry: Any, spec: ModuleInstanceSpec) -> bool:
    if not isinstance(entry, ModuleInstance) or entry.metadata.deletion_timestamp or entry.spec != spec:
        return False
    labels = entry.metadata.labels
    has_labels = OWNER_LABEL in labels and _labels(spec).items() <= labels.items()
    # In Python 1 equals True, in values of a chart it does not.
    return has_labels and canonical(entry.spec.values) == canonical(spec.values)


async def _place(context: Context[Cluster]) -> Outcome:
    catalogue = catalogue_of(context)
    resolution = resolve(catalogue, context.object)
    if is_current(resolution, catalogue):
        return Done()
    unconfirmed = await confirm_removal(context, catalogue, resolution.removed)
    held = [msgspec.structs.replace(each.spec, hold=each.problem) for each in unconfirmed if not each.is_transient]
    late = [instance_name(each.spec.module, each.spec.cluster) for each in unconfirmed if each.is_transient]
    namespace = context.key.namespace
    manifests = [manifest_of(each, namespace) for each in (*resolution.instances.values(), *held)]
    kept = [ObjectRef(GROUP, MODULE_INSTANCE.kind, namespace, each) for each in (*resolution.kept, *late)]
    first = [
        {ObjectRef(GROUP, MODULE_INSTANCE.kind, namespace, instance_name(each, context.key.name)) for each in level}
        for level in dependency_levels(resolution.instances.values())
    ]
    converged = await context.converge(manifests, allow_empty=True, first=first, kept=kept, read_readiness=False)
    if isinstance(converged.outcome, Failed):
        context.event("NotPlaced", str(converged.outcome.error), EventType.WARNING)
    if isinstance(converged.outcome, Done) and late:
        return Waiting(
            f"the Installations of {listed(late)} have changed, but their watch has not delivered that yet", RECHECK_S
        )
    return converged.outcome


async def _remove(context: Context[Cluster | None]) -> Outcome:
    """Remove the ModuleInstances of a Cluster that is being deleted."""
    cluster = context.object
    if cluster is not None:
        own = tuple(each for each in cluster.status.conditions if each.type != FINALIZED)
        message = "its ModuleInstances are being removed; what is installed in the cluster stays"
        status = msgspec.structs.replace(cluster.status, state=State.DELETING, message=message, conditions=own)
        await context.write_status(status)
    return await context.delete_objects()
