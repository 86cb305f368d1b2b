"""The cached objects that are resolved, with the lookups that resolution needs."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from governor.kube.controller.views import readable
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Entry, Store, Unreadable
from governor.kube.reflector.store import Index
from governor.reconciler.kinds.channel import CHANNEL, Channel
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.installation import Installation
from governor.reconciler.kinds.module import MODULE, Module, module_object_name
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ModuleInstance, instance_name
from governor.reconciler.kinds.state import RESOLVED

DEPENDENCY_MISSING: Final = "DependencyMissing"
DEPENDENCY_CYCLE: Final = "DependencyCycle"
DEPENDENCY_REASONS: Final = frozenset({DEPENDENCY_MISSING, DEPENDENCY_CYCLE})


def _dependency_problems(installation: Installation) -> Iterator[bool]:
    """Yield True if a dependency was missing when the Installation was last resolved."""
    resolved = (each for each in installation.status.conditions if each.type == RESOLVED)
    if any(each.reason in DEPENDENCY_REASONS for each in resolved):
        yield True


def _values_sources(instance: ModuleInstance) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the Secrets and ConfigMaps that a ModuleInstance reads."""
    for each in instance.spec.values_from:
        if each.secret_ref is not None:
            yield "Secret", each.secret_ref.name
        if each.config_map_ref is not None:
            yield "ConfigMap", each.config_map_ref.name


INSTALLATION_INDEXES: Final[Mapping[str, Index[Installation]]] = {
    "module": lambda each: (each.spec.module,),
    "channel": lambda each: (each.spec.channel,),
    "has_dependency_problem": _dependency_problems,
}
INSTANCE_INDEXES: Final[Mapping[str, Index[ModuleInstance]]] = {
    "cluster": lambda each: (each.spec.cluster,),
    "module": lambda each: (module_object_name(each.spec.module, each.spec.version),),
    "values": _values_sources,
    "depends_on": lambda each: [(each.spec.cluster, name) for name in each.spec.depends_on],
}


class Catalogue(msgspec.Struct, frozen=True):
    """The objects of one hub namespace."""

    namespace: str
    installations: Store[Installation]
    """With ``INSTALLATION_INDEXES``."""
    channels: Store[Channel]
    modules: Store[Module]
    instances: Store[ModuleInstance]
    """With ``INSTANCE_INDEXES``."""

    def installations_of(self, module: str, cluster: Cluster) -> list[Installation]:
        """Return the Installations of a module that select a cluster, in the order of their names.

        Of an unreadable one its last readable state counts. One that is being deleted counts as deleted.
        """
        found = (readable(each) for each in self.installations.find("module", module))
        selecting = [each for each in found if each is not None and is_selecting(each, cluster)]
        return sorted(selecting, key=lambda each: each.metadata.name)

    def modules_on(self, cluster: Cluster) -> list[str]:
        """Return the names of the modules that some Installation enables on a cluster, sorted."""
        views = (readable(each) for each in self.installations.values())
        return sorted({each.spec.module for each in views if each is not None and is_selecting(each, cluster)})

    def unreadable_installations(self) -> frozenset[str]:
        """Return the names of Installations of which no state could ever be read: they may enable anything."""
        entries = self.installations.values()
        return frozenset(each.metadata.name for each in entries if isinstance(each, Unreadable) and each.last is None)

    def channel(self, name: str) -> Entry[Channel] | None:
        """Return a Channel, or None if it does not exist."""
        return self.channels.get(self._ref(CHANNEL.kind, name))

    def module(self, module: str, version: str) -> Entry[Module] | None:
        """Return the Module of a version, or None if it does not exist."""
        return self.modules.get(self._ref(MODULE.kind, module_object_name(module, version)))

    def instance(self, module: str, cluster: str) -> Entry[ModuleInstance] | None:
        """Return the ModuleInstance of a module on a cluster, or None if it does not exist."""
        return self.instances.get(self._ref(MODULE_INSTANCE.kind, instance_name(module, cluster)))

    def instances_on(self, cluster: str) -> Iterator[Entry[ModuleInstance]]:
        """Yield the ModuleInstances of a cluster, including those that could never be read."""
        yield from self.instances.find("cluster", cluster)
        for entry in self.instances.values():
            _, _, of_cluster = entry.metadata.name.partition(".")
            if isinstance(entry, Unreadable) and entry.last is None and of_cluster == cluster:
                yield entry

    def _ref(self, kind: str, name: str) -> ObjectRef:
        return ObjectRef(GROUP, kind, self.namespace, name)


def is_selecting(installation: Installation, cluster: Cluster) -> bool:
    """Return whether an Installation that is not being deleted enables its module on a cluster."""
    metadata = cluster.metadata
    return not installation.metadata.deletion_timestamp and installation.selects(metadata.name, metadata.labels)
