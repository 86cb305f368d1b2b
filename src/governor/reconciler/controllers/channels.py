"""Writes the status of each Channel: whether its modules exist."""

from collections.abc import Iterable
from typing import Final

from governor.kube.controller import Context, Controller, NamespacedName
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Store, Unreadable
from governor.process.reconcile.reconciler import Done, Outcome
from governor.reconciler.controllers.watched import SETTINGS, nothing_to_finalize
from governor.reconciler.kinds.channel import CHANNEL, Channel
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.module import MODULE, Module, module_object_name
from governor.reconciler.states.channel_state import channel_status

NAME: Final = "channels"


def channels_controller() -> Controller[Channel]:
    """Return the controller."""
    controller = Controller(NAME, CHANNEL.resource, Channel, _report, settings=SETTINGS, finalize=nothing_to_finalize)
    return controller.watches(MODULE.resource, Module, channels_of)


def channels_of(module: Module, channels: Store[Channel]) -> Iterable[NamespacedName]:
    """Return the Channels that name a version of a Module."""
    found = [each for each in channels.values() if not isinstance(each, Unreadable)]
    spec = module.spec
    return [
        NamespacedName(each.metadata.namespace, each.metadata.name)
        for each in found
        if each.spec.modules.get(spec.module) == spec.version
    ]


async def _report(context: Context[Channel]) -> Outcome:
    channel, modules = context.object, context.store(Module)
    missing = [
        module
        for module, version in channel.spec.modules.items()
        if ObjectRef(GROUP, MODULE.kind, context.key.namespace, module_object_name(module, version)) not in modules
    ]
    await context.write_status(channel_status(channel, missing))
    return Done()
