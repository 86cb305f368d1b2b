"""The status of an Installation: whether it is resolved, and how its module is on the selected clusters."""

from collections.abc import Mapping

import msgspec

from governor.domain.conditions import Condition
from governor.kube.reflector import Entry
from governor.reconciler.kinds.installation import Installation, InstallationStatus
from governor.reconciler.kinds.module_instance import ModuleInstance
from governor.reconciler.kinds.state import READY, RESOLVED, ModuleLine, Problem, State
from governor.reconciler.resolution.placement import Placement
from governor.reconciler.states.conditions import met, published, unmet
from governor.reconciler.states.module_lines import line_of, overall
from governor.values.printing import listed


class OnCluster(msgspec.Struct, frozen=True):
    """What an Installation means for one cluster, and the ModuleInstance that exists there."""

    placement: Placement
    instance: Entry[ModuleInstance] | None


def installation_status(installation: Installation, clusters: Mapping[str, OnCluster]) -> InstallationStatus:
    """Return the status of an Installation that selects these clusters."""
    lines = {name: line_of(each.placement, each.instance) for name, each in sorted(clusters.items())}
    known = {name: line for name, line in lines.items() if line is not None}
    if not clusters:
        return _without_clusters(installation)
    ready = sum(line.state is State.READY for line in known.values())
    state = overall(list(known.values()))
    conditions = (_resolved(clusters), _ready(state, known))
    return InstallationStatus(
        conditions=tuple(map(published, conditions)),
        state=state,
        version=next(iter(clusters.values())).placement.version,
        clusters=len(clusters),
        ready=f"{ready}/{len(clusters)}",
    )


def _without_clusters(installation: Installation) -> InstallationStatus:
    name = installation.spec.cluster
    if name is None:
        state, message = State.PENDING, "the clusterSelector matches no Cluster"
        resolved = met(RESOLVED, "NoClusters", message)
    else:
        state, message = State.WARNING, f"there is no Cluster {name}: create it, or name another"
        resolved = unmet(RESOLVED, "ClusterMissing", message)
    conditions = (resolved, unmet(READY, state, message))
    return InstallationStatus(
        conditions=tuple(map(published, conditions)), state=state, version=installation.spec.version or "", ready="0/0"
    )


def _resolved(clusters: Mapping[str, OnCluster]) -> Condition:
    outcomes = {name: each.placement.outcome for name, each in sorted(clusters.items())}
    problems = {name: each for name, each in outcomes.items() if isinstance(each, Problem)}
    if not problems:
        return met(RESOLVED, RESOLVED, f"resolved for {len(clusters)} clusters")
    first = next(iter(problems.values()))
    return unmet(RESOLVED, first.reason, f"on {listed(problems)}: {first.message}")


def _ready(state: State, lines: Mapping[str, ModuleLine]) -> Condition:
    if state is State.READY:
        return met(READY, state, f"ready on all {len(lines)} clusters")
    name, line = next((name, line) for name, line in lines.items() if overall([line]) is state)
    return unmet(READY, line.reason or state, f"on {name}: {line.message}")
