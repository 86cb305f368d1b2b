"""Writes the status of each Installation: whether it is resolved, and how its module is on the selected clusters."""

from collections.abc import Iterable
from typing import Final

from governor.kube.controller import Condition, Context, Controller, EventType, NamespacedName
from governor.kube.controller.conditions import FALSE
from governor.kube.controller.views import readable
from governor.kube.reflector import Store, Unreadable
from governor.process.clock import Clock
from governor.process.reconcile.reconciler import Done, Outcome, Requeue
from governor.reconciler.controllers.watched import SETTINGS, Delay, catalogue_of, is_edited, nothing_to_finalize
from governor.reconciler.kinds.channel import CHANNEL, Channel
from governor.reconciler.kinds.cluster import CLUSTER, Cluster
from governor.reconciler.kinds.installation import INSTALLATION, Installation, InstallationStatus
from governor.reconciler.kinds.module import MODULE, Module
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ModuleInstance
from governor.reconciler.kinds.state import RESOLVED, State
from governor.reconciler.resolution.catalogue import INSTALLATION_INDEXES, INSTANCE_INDEXES, is_selecting
from governor.reconciler.resolution.placement import place
from governor.reconciler.states.installation_state import OnCluster, installation_status

NAME: Final = "installations"
LASTING_S: Final = 1.0
"""A state that work is under way is written only if it lasts longer: most changes are applied within this time."""
_PASSING: Final = frozenset({State.PENDING, State.PROCESSING})


def installations_controller(clock: Clock) -> Controller[Installation]:
    """Return the controller."""
    delay = Delay(clock, LASTING_S)

    async def reconcile(context: Context[Installation]) -> Outcome:
        status = _status(context)
        if status.state in _PASSING and (wait_s := delay.wait_s(context.key.name)):
            return Requeue(wait_s)
        delay.forget(context.key.name)
        await _report(context, status)
        return Done()

    async def finalize(context: Context[Installation | None]) -> Outcome:
        delay.forget(context.key.name)
        return await nothing_to_finalize(context)

    controller = Controller(
        NAME,
        INSTALLATION.resource,
        Installation,
        reconcile,
        settings=SETTINGS,
        finalize=finalize,
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


def _status(context: Context[Installation]) -> InstallationStatus:
    installation, catalogue = context.object, catalogue_of(context)
    views = filter(None, map(readable, context.store(Cluster).values()))
    clusters = {
        each.metadata.name: OnCluster(
            place(catalogue, installation, each), catalogue.instance(installation.spec.module, each.metadata.name)
        )
        for each in views
        if is_selecting(installation, each)
    }
    return installation_status(installation, clusters)


async def _report(context: Context[Installation], status: InstallationStatus) -> None:
    resolved, before = _resolved(status), _resolved(context.object.status)
    if await context.write_status(status) and resolved and (before is None or resolved.reason != before.reason):
        event_type = EventType.WARNING if resolved.status == FALSE else EventType.NORMAL
        context.event(resolved.reason, resolved.message, event_type)


def _resolved(status: InstallationStatus) -> Condition | None:
    return next((each for each in status.conditions if each.type == RESOLVED), None)
