"""All ModuleInstances that a cluster must have, and which of the present ones must stay as they are."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import msgspec

from governor.domain.conditions import Actor
from governor.kube.controller.views import readable
from governor.kube.reflector import Unreadable
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem
from governor.reconciler.resolution.catalogue import Catalogue
from governor.reconciler.resolution.placement import Placement, place


class Resolution(msgspec.Struct, frozen=True):
    """What a cluster must have."""

    placements: tuple[Placement, ...]
    """One for each Installation that selects the cluster, in the order of modules."""
    instances: Mapping[str, ModuleInstanceSpec]
    """The desired ModuleInstances by module; one that cannot be resolved keeps its spec, on hold."""
    kept: frozenset[str]
    """Names of ModuleInstances that cannot be read and must not be removed."""
    removed: tuple[ModuleInstance, ...]
    """ModuleInstances that no Installation asks for."""


def resolve(catalogue: Catalogue, cluster: Cluster) -> Resolution:
    """Return what a cluster must have."""
    placements = tuple(
        place(catalogue, installation, cluster)
        for module in catalogue.modules_on(cluster)
        for installation in catalogue.installations_of(module, cluster)
    )
    instances = {each.module: each.outcome for each in placements if isinstance(each.outcome, ModuleInstanceSpec)}
    problems = {each.module: each.outcome for each in placements if isinstance(each.outcome, Problem)}
    unreadable = catalogue.unreadable_installations()
    kept, removed = set[str](), list[ModuleInstance]()
    for entry in catalogue.instances_on(cluster.metadata.name):
        instance = readable(entry)
        module = _module_of(entry.metadata.name)
        if module in instances:
            continue
        if instance is None:
            kept.add(entry.metadata.name)
        elif problem := problems.get(module) or _unreadable_problem(instance, unreadable):
            instances[module] = msgspec.structs.replace(instance.spec, hold=problem)
        elif isinstance(entry, Unreadable):
            kept.add(entry.metadata.name)
        else:
            removed.append(instance)
    return Resolution(placements, instances, frozenset(kept), tuple(removed))


def dependency_levels(specs: Iterable[ModuleInstanceSpec]) -> list[frozenset[str]]:
    """Return the modules that others depend on, those first that depend on none; empty if there is a cycle."""
    sorter = TopologicalSorter({each.module: each.depends_on for each in specs if each.depends_on})
    try:
        sorter.prepare()
    except CycleError:
        return []
    levels: list[frozenset[str]] = []
    while sorter.is_active():
        levels.append(frozenset(sorter.get_ready()))
        sorter.done(*levels[-1])
    return levels[:-1]


def _module_of(name: str) -> str:
    return name.partition(".")[0]


def _unreadable_problem(instance: ModuleInstance, unreadable: frozenset[str]) -> Problem | None:
    name = instance.spec.installation
    if name not in unreadable:
        return None
    message = f"Installation {name} cannot be read: its Event Unreadable says why; correct it, or delete it"
    return Problem("InstallationUnreadable", message, Actor.USER)
