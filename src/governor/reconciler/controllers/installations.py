"""Writes the status of each Installation: whether it is resolved, and how its module is on the selected clusters."""

from collections.abc import Iterable
from typing import Final

from governor.kube.controller import Condition, Context, Controller, EventType, NamespacedName
from governor.kube.controller.conditions import FALSE
from governor.kube.controller.views import readable
from governor.kube.reflector import Store, Unreadable
from governor.process.reconcile.reconciler import Done, Outcome
from governor.reconciler.controllers.watched import SETTINGS, catalogue_of, is_edited, nothing_to_finalize
from governor.reconciler.kinds.channel import CHANNEL, Channel
from governor.reconciler.kinds.cluster import CLUSTER, Cluster
from governor.reconciler.kinds.installation import INSTALLATION, Installation, InstallationStatus
from governor.reconciler.kinds.module import MODULE, Module
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ModuleInstance
from governor.reconciler.kinds.state import RESOLVED
from governor.reconciler.resolution.catalogue import INSTALLATION_INDEXES, INSTANCE_INDEXES, is_selecting
from governor.reconciler.resolution.placement import place
from governor.reconciler.states.installation_state import OnCluster, installation_status

NAME: Final = "installations"


def installations_controller() -> Controller[Installation]:
    """Return the controller."""
    controller = Controller(
        NAME,
        INSTALLATION.resource,
        Installation,
        _report,
        settings=SETTINGS,
        finalize=nothing_to_finalize,
        indexes=INSTALLATION_INDEXES,
    )
    controller.watches(
        INSTALLATION.resource,
        Installation,
        with_same_module,
        predicate=is_edited,
        indexes=INSTALLATION_INDEXES,
    )
    controller.watches(CHANNEL.resource, Channel, of_channel, predicate=is_edited)
    controller.watches(MODULE.resource, Module, of_module)
    controller.watches(MODULE_INSTANCE.resource, ModuleInstance, of_instance, indexes=INSTANCE_INDEXES)
    return controller.watches(CLUSTER.resource, Cluster, selecting, predicate=is_edited)


def with_same_module(changed: Installation, installations: Store[Installation]) -> Iterable[NamespacedName]:
    """Return the Installations of the same module, which may be in conflict, and those that miss a dependency."""
    return _found(installations, changed.spec.module)


def of_module(module: Module, installations: Store[Installation]) -> Iterable[NamespacedName]:
    """Return the Installations of a module, and those that miss a dependency."""
    return _found(installations, module.spec.module)


def _found(installations: Store[Installation], module: str) -> Iterable[NamespacedName]:
    found = [*installations.find("module", module), *installations.find("has_dependency_problem", True)]
    return [NamespacedName(each.metadata.namespace, each.metadata.name) for each in found]


def of_channel(channel: Channel, installations: Store[Installation]) -> Iterable[NamespacedName]:
    """Return the Installations that follow a Channel."""
    found = installations.find("channel", channel.metadata.name)
    return [NamespacedName(each.metadata.namespace, each.metadata.name) for each in found]


def of_instance(instance: ModuleInstance, _: Store[Installation]) -> Iterable[NamespacedName]:
    """Return the Installation of a ModuleInstance."""
    return [NamespacedName(instance.metadata.namespace, instance.spec.installation)]


def selecting(cluster: Cluster, installations: Store[Installation]) -> Iterable[NamespacedName]:
    """Return the Installations that select a Cluster."""
    views = [each for each in installations.values() if not isinstance(each, Unreadable)]
    return [
        NamespacedName(each.metadata.namespace, each.metadata.name)
        for each in views
        if each.selects(cluster.metadata.name, cluster.metadata.labels)
    ]


async def _report(context: Context[Installation]) -> Outcome:
    installation, catalogue = context.object, catalogue_of(context)
    views = filter(None, map(readable, context.store(Cluster).values()))
    clusters = {
        each.metadata.name: OnCluster(
            place(catalogue, installation, each), catalogue.instance(installation.spec.module, each.metadata.name)
        )
        for each in views
        if is_selecting(installation, each)
    }
    status = installation_status(installation, clusters)
    resolved, before = _resolved(status), _resolved(installation.status)
    if await context.write_status(status) and resolved and (before is None or resolved.reason != before.reason):
        event_type = EventType.WARNING if resolved.status == FALSE else EventType.NORMAL
        context.event(resolved.reason, resolved.message, event_type)
    return Done()


def _resolved(status: InstallationStatus) -> Condition | None:
    return next((each for each in status.conditions if each.type == RESOLVED), None)
