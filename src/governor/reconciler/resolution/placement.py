"""What one Installation means for one cluster: the spec of a ModuleInstance, or the problem that prevents it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.domain.documents import Drift
from governor.kube.reflector import Unreadable
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.definition import Values
from governor.reconciler.kinds.installation import Installation
from governor.reconciler.kinds.module import Module, Protection
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem
from governor.reconciler.resolution.catalogue import DEPENDENCY_CYCLE, DEPENDENCY_MISSING, Catalogue
from governor.reconciler.resolution.label_values import with_label_values
from governor.values.digest import canonical
from governor.values.printing import listed

CONFLICT: Final = "Conflict"


class Placement(msgspec.Struct, frozen=True):
    """A module that an Installation enables on a cluster; ``outcome`` is what becomes of it."""

    module: str
    installation: str
    version: str
    """The wanted version; empty if the channel does not determine one."""
    outcome: ModuleInstanceSpec | Problem


def place(catalogue: Catalogue, installation: Installation, cluster: Cluster) -> Placement:
    """Return what an Installation that selects a cluster means for it."""
    spec = installation.spec
    version = _version(catalogue, installation)
    name, wanted = installation.metadata.name, version if isinstance(version, str) else ""
    return Placement(spec.module, name, wanted, _outcome(catalogue, installation, cluster, version))


def _outcome(
    catalogue: Catalogue, installation: Installation, cluster: Cluster, version: str | Problem
) -> ModuleInstanceSpec | Problem:
    if conflict := _conflict(catalogue, installation, cluster):
        return conflict
    module = _module(catalogue, installation, version)
    if isinstance(module, Problem):
        return module
    values = with_label_values(installation.spec.values, installation.spec.values_from_labels, cluster.metadata.labels)
    if isinstance(values, Problem):
        return values
    if reason := _unwritable(values):
        return Problem("ValuesInvalid", f"the values of the Installation cannot be written: {reason}", Actor.USER)
    return _dependency_problem(catalogue, module, cluster) or _spec(installation, cluster, module, values)


def _unwritable(values: Values) -> str:
    """Return why values cannot be encoded, or ``""``: those that can just be decoded may be nested too deeply."""
    try:
        canonical(values)
    except RecursionError:
        return "they are nested too deeply"
    return ""


def _conflict(catalogue: Catalogue, installation: Installation, cluster: Cluster) -> Problem | None:
    module = installation.spec.module
    names = {each.metadata.name for each in catalogue.installations_of(module, cluster)} | {installation.metadata.name}
    if len(names) == 1:
        return None
    message = (
        f"Installations {listed(sorted(names))} enable {module} on cluster {cluster.metadata.name}: keep one of them"
    )
    return Problem(CONFLICT, message, Actor.USER)


def _version(catalogue: Catalogue, installation: Installation) -> str | Problem:
    spec = installation.spec
    if spec.channel is None:
        return spec.version or ""
    channel = catalogue.channel(spec.channel)
    if channel is None:
        return Problem("ChannelMissing", f"there is no Channel {spec.channel}: create it, or name another", Actor.USER)
    if isinstance(channel, Unreadable):
        return Problem("ChannelUnreadable", f"Channel {spec.channel}: {channel.reason}", Actor.OPERATOR)
    if spec.module not in channel.spec.modules:
        message = f"Channel {spec.channel} has no module {spec.module}: add it, or name another channel or a version"
        return Problem("ModuleNotInChannel", message, Actor.USER)
    return channel.spec.modules[spec.module]


def _module(catalogue: Catalogue, installation: Installation, version: str | Problem) -> Module | Problem:
    if isinstance(version, Problem):
        return version
    spec = installation.spec
    module = catalogue.module(spec.module, version)
    if isinstance(module, Unreadable):
        return Problem("ModuleUnreadable", f"Module {module.metadata.name}: {module.reason}", Actor.OPERATOR)
    # Versions that differ only in case or in + and - have the same object name.
    if module is None or (module.spec.module, module.spec.version) != (spec.module, version):
        actor = Actor.USER if spec.channel is None else Actor.OPERATOR
        source = "" if spec.channel is None else f", which Channel {spec.channel} names"
        message = f"there is no Module for {spec.module} {version}{source}: create it, or choose another version"
        return Problem("ModuleMissing", message, actor)
    return module


def _spec(installation: Installation, cluster: Cluster, module: Module, values: Values) -> ModuleInstanceSpec:
    wanted, defaults = installation.spec, module.spec
    drift, protection = wanted.drift or defaults.drift, wanted.protection or defaults.protection
    if protection is Protection.NONE:
        drift = msgspec.structs.replace(drift, mode=Drift.OFF)
    return ModuleInstanceSpec(
        module=defaults.module,
        cluster=cluster.metadata.name,
        installation=installation.metadata.name,
        installation_created=installation.metadata.creation_timestamp,
        version=defaults.version,
        chart_digest=defaults.chart.digest,
        namespace=wanted.namespace or defaults.namespace or defaults.module,
        release_name=wanted.release_name or defaults.release_name or defaults.module,
        values=values,
        values_from=wanted.values_from,
        depends_on=defaults.depends_on,
        service_account_name=wanted.service_account_name,
        drift=drift,
        protection=protection,
        custom_resources=defaults.custom_resources,
        deletion_policy=wanted.deletion_policy,
        adopt=wanted.adopt,
        paused=wanted.paused,
        allow_downgrade=wanted.allow_downgrade,
        on_failure=wanted.on_failure,
    )


def _dependency_problem(catalogue: Catalogue, module: Module, cluster: Cluster) -> Problem | None:
    name = module.spec.module

    def dependencies(of: str) -> Sequence[str]:
        return module.spec.depends_on if of == name else _depends_on(catalogue, of, cluster)

    if cycle := find_cycle(name, dependencies):
        message = f"the modules depend on each other: {' → '.join(cycle)}; remove a dependency in a new Module version"
        return Problem(DEPENDENCY_CYCLE, message, Actor.OPERATOR)
    missing = [each for each in module.spec.depends_on if not _is_present(catalogue, each, cluster)]
    if not missing:
        return None
    message = f"{name} depends on {listed(missing)}: create an Installation on cluster {cluster.metadata.name}"
    return Problem(DEPENDENCY_MISSING, message, Actor.USER)


def _is_present(catalogue: Catalogue, module: str, cluster: Cluster) -> bool:
    return bool(catalogue.installations_of(module, cluster)) or _kept_spec(catalogue, module, cluster) is not None


def _depends_on(catalogue: Catalogue, name: str, cluster: Cluster) -> Sequence[str]:
    """Return the dependencies of a module on a cluster: of its wanted version, otherwise of the present one."""
    for installation in catalogue.installations_of(name, cluster):
        module = _module(catalogue, installation, _version(catalogue, installation))
        if isinstance(module, Module):
            return module.spec.depends_on
    kept = _kept_spec(catalogue, name, cluster)
    return kept.depends_on if kept else ()


def _kept_spec(catalogue: Catalogue, module: str, cluster: Cluster) -> ModuleInstanceSpec | None:
    """Return the present spec of a module that stays although it may not be resolved; None if it is removed."""
    entry = catalogue.instance(module, cluster.metadata.name)
    if entry is None or isinstance(entry, Unreadable) or entry.metadata.deletion_timestamp:
        return None
    is_enabled = bool(catalogue.installations_of(module, cluster))
    return entry.spec if is_enabled or entry.spec.installation in catalogue.unreadable_installations() else None


def find_cycle(start: str, dependencies: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """Return the shortest cycle of dependencies through a module, beginning and ending with it; empty without one."""
    came_from: dict[str, str] = {}
    ahead = [start]
    for each in ahead:  # breadth first; grows while it is read
        for found in dependencies(each):
            if found == start:
                return (*_path(start, each, came_from), start)
            if found not in came_from:
                came_from[found] = each
                ahead.append(found)
    return ()


def _path(start: str, end: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return tuple(reversed(path))
