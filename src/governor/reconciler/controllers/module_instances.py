"""Works on each ModuleInstance: runs its steps, and turns their result into status, Event and requeue."""

from collections.abc import Iterable, Sequence
from typing import Final

from governor.domain.conditions import Actor
from governor.kube.controller import Context, Controller, EventType, NamespacedName
from governor.kube.controller.views import readable
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Store
from governor.process.reconcile.reconciler import Done, Outcome, Stalled
from governor.reconciler.controllers.watched import (
    NOT_OURS,
    SETTINGS,
    ConfigMapSource,
    SecretSource,
    nothing_to_finalize,
)
from governor.reconciler.core_kinds import CONFIG_MAPS, SECRETS
from governor.reconciler.kinds.cluster import CLUSTER, Cluster
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.module import MODULE, Module, module_object_name
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ModuleInstance
from governor.reconciler.kinds.state import Problem
from governor.reconciler.resolution.catalogue import INSTANCE_INDEXES
from governor.reconciler.states.instance_state import instance_status
from governor.reconciler.steps.inputs import check_hold, check_module, read_values
from governor.reconciler.steps.step import Halt, Step, Work, run

NAME: Final = "module-instances"
STEPS: Final[Sequence[Step]] = (check_hold, check_module, read_values)


def module_instances_controller(steps: Sequence[Step] = STEPS) -> Controller[ModuleInstance]:
    """Return the controller."""

    async def reconcile(context: Context[ModuleInstance]) -> Outcome:
        result = await run(steps, _work(context))
        await _report(context, result)
        return Stalled(result.message) if isinstance(result, Problem) else Done()

    controller = Controller(
        NAME,
        MODULE_INSTANCE.resource,
        ModuleInstance,
        reconcile,
        settings=SETTINGS,
        finalize=nothing_to_finalize,
        indexes=INSTANCE_INDEXES,
        group_of=lambda key: key.name.partition(".")[2],  # fair among clusters
    )
    controller.watches(CLUSTER.resource, Cluster, on_cluster, predicate=is_changed)
    controller.watches(MODULE.resource, Module, of_module)
    controller.watches(SECRETS, SecretSource, reading_secret)
    return controller.watches(CONFIG_MAPS, ConfigMapSource, reading_config_map, labels=NOT_OURS)


def is_changed(old: Cluster, new: Cluster) -> bool:
    """Return whether the spec of a Cluster has changed, or its deletion was requested."""
    return old.metadata.generation != new.metadata.generation


def on_cluster(cluster: Cluster, instances: Store[ModuleInstance]) -> Iterable[NamespacedName]:
    """Return the ModuleInstances on a Cluster."""
    return _names(instances, "cluster", cluster.metadata.name)


def of_module(module: Module, instances: Store[ModuleInstance]) -> Iterable[NamespacedName]:
    """Return the ModuleInstances of a Module."""
    return _names(instances, "module", module.metadata.name)


def reading_secret(secret: SecretSource, instances: Store[ModuleInstance]) -> Iterable[NamespacedName]:
    """Return the ModuleInstances with values from a Secret."""
    return _names(instances, "values", ("Secret", secret.metadata.name))


def reading_config_map(source: ConfigMapSource, instances: Store[ModuleInstance]) -> Iterable[NamespacedName]:
    """Return the ModuleInstances with values from a ConfigMap."""
    return _names(instances, "values", ("ConfigMap", source.metadata.name))


def _names(instances: Store[ModuleInstance], index: str, key: object) -> Iterable[NamespacedName]:
    found = instances.find(index, key)
    return [NamespacedName(each.metadata.namespace, each.metadata.name) for each in found]


def _work(context: Context[ModuleInstance]) -> Work:
    instance, namespace = context.object, context.key.namespace
    name = module_object_name(instance.spec.module, instance.spec.version)
    return Work(
        instance,
        context.store(Cluster).get(ObjectRef(GROUP, CLUSTER.kind, namespace, instance.spec.cluster)),
        context.store(Module).get(ObjectRef(GROUP, MODULE.kind, namespace, name)),
        context.client,
        _kubeconfigs(context.store(Cluster)) if instance.spec.values_from else {},
    )


def _kubeconfigs(clusters: Store[Cluster]) -> dict[str, str]:
    views = filter(None, map(readable, clusters.values()))
    found = ((each.spec.access.kubeconfig_secret, each.metadata.name) for each in views)
    return {secret.name: cluster for secret, cluster in found if secret is not None}


async def _report(context: Context[ModuleInstance], result: Work | Halt) -> None:
    status, before = instance_status(context.object, result), context.object.status
    is_written = await context.write_status(status)
    if is_written and (status.state, status.reason) != (before.state, before.reason):
        event_type = EventType.WARNING if status.actor is not Actor.NOBODY else EventType.NORMAL
        context.event(status.reason, status.message, event_type)
