"""What restarts depend on beside the workload itself: Dapr's control plane, Secrets, disruption budgets."""

from collections.abc import Mapping
from typing import TypeAlias

from governor.agent.platforms.kubernetes.restarts.control_plane import Component, ControlPlane, dapr_obstacle
from governor.agent.platforms.kubernetes.restarts.decision import Budget, budget_obstacle, budget_violation
from governor.agent.platforms.kubernetes.restarts.restarter import Restarter
from governor.agent.platforms.kubernetes.workloads.workload import Workload

_Needs: TypeAlias = tuple[tuple[Component, ...], Mapping[str, frozenset[str]]]
"""The Components of a namespace, and the keys of the Secrets that they refer to."""


class Surroundings:
    """The surroundings in one step; each namespace is read once, and only if that is needed."""

    def __init__(self, restarter: Restarter, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        self._restarter = restarter
        self._needs: dict[str, _Needs] = {}
        self._budgets: dict[str, tuple[Budget, ...]] = {}

    async def obstacle(self, workload: Workload, *, hosts_actors: bool | None) -> str:
        """Return why a workload must not be restarted now, or ``""``."""
        components, secrets = await self._needs_of(workload.ref.namespace)
        sick = dapr_obstacle(self.control_plane, components, secrets, app_id=workload.app_id, hosts_actors=hosts_actors)
        return sick or budget_obstacle(workload, await self._budgets_of(workload.ref.namespace))

    async def violation(self, workload: Workload) -> str:
        """Return which disruption budget of a workload's pods is violated, or ``""``."""
        return budget_violation(workload, await self._budgets_of(workload.ref.namespace))

    async def _needs_of(self, namespace: str) -> _Needs:
        if namespace not in self._needs:
            components = await self._restarter.components(namespace)
            self._needs[namespace] = components, await self._restarter.secret_keys(namespace, components)
        return self._needs[namespace]

    async def _budgets_of(self, namespace: str) -> tuple[Budget, ...]:
        if namespace not in self._budgets:
            self._budgets[namespace] = await self._restarter.budgets(namespace)
        return self._budgets[namespace]
