"""Which ModuleInstances are reconciled for a change of another object. Pure."""

from collections.abc import Iterable

from governor.kube.controller import NamespacedName
from governor.kube.reflector import Store
from governor.reconciler.controllers.watched import ConfigMapSource, SecretSource
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.module import Module
from governor.reconciler.kinds.module_instance import ModuleInstance, instance_name
from governor.reconciler.states.cluster_state import is_unreachable


def is_state_changed(old: ModuleInstance, new: ModuleInstance) -> bool:
    """Return whether modules that depend on this one may have to act."""
    return _state(old) != _state(new)


def _state(instance: ModuleInstance) -> tuple[object, ...]:
    return instance.status.state, instance.status.observed_generation, instance.metadata.generation


def neighbours(instance: ModuleInstance, instances: Store[ModuleInstance]) -> Iterable[NamespacedName]:
    """Return the ModuleInstances that depend on this one, and those that it depends on: they are removed after it."""
    spec, namespace = instance.spec, instance.metadata.namespace
    yield from _names(instances, "depends_on", (spec.cluster, spec.module))
    for each in spec.depends_on:
        yield NamespacedName(namespace, instance_name(each, spec.cluster))


def is_changed(old: Cluster, new: Cluster) -> bool:
    """Return whether the spec of a Cluster has changed, its deletion was requested, or it answers again."""
    return (old.metadata.generation, is_unreachable(old)) != (new.metadata.generation, is_unreachable(new))


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
