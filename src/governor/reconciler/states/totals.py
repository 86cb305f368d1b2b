"""Metrics of all clusters together: how many are in which state, and how many failures are escalated.

No label names a cluster or module: there may be ten thousand. Their statuses have the details.
"""

from functools import partial
from typing import Final

from governor.process.telemetry.instruments import Gauge, Registry
from governor.reconciler.kinds.cluster import ClusterStatus
from governor.reconciler.kinds.state import ModuleCounts, State

_FIELDS: Final = {
    State.READY: "ready",
    State.PROCESSING: "progressing",
    State.WARNING: "warning",
    State.ERROR: "error",
    State.UNKNOWN: "unknown",
}
"""States of modules and their counts; those that are pending or deleted count as processing."""


class Totals:
    """The last known status of each cluster, as sums."""

    def __init__(self, registry: Registry) -> None:
        self._statuses: dict[str, tuple[ClusterStatus, int]] = {}
        clusters = Gauge("governor_reconciler_clusters", "Clusters by state.", ["state"], registry=registry)
        for state in State:
            clusters.labels(state).set_function(partial(self._clusters, state))
        modules = Gauge("governor_reconciler_modules", "Modules by state.", ["state"], registry=registry)
        for name, field in _FIELDS.items():
            modules.labels(name).set_function(partial(self._modules, field))
        escalated = Gauge(
            "governor_reconciler_escalated", "Modules and clusters with an escalated failure.", registry=registry
        )
        escalated.set_function(lambda: sum(number for _, number in self._statuses.values()))

    def put(self, cluster: str, status: ClusterStatus, escalated: int) -> None:
        """Replace what is known of a cluster."""
        self._statuses[cluster] = (status, escalated)

    def forget(self, cluster: str) -> None:
        """Drop a deleted cluster."""
        self._statuses.pop(cluster, None)

    def _clusters(self, state: State) -> float:
        return sum(status.state is state for status, _ in self._statuses.values())

    def _modules(self, field: str) -> float:
        counts = (status.counts or ModuleCounts() for status, _ in self._statuses.values())
        return float(sum(getattr(each, field) for each in counts))
