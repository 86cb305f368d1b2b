"""Whether workers are needed, and their number: the watching process scales their Deployment.

A module needs a worker unless it is Ready and as it was applied. The watching process only compares what it watches
with what was applied; all writes to clusters, and to the status of ModuleInstances, are those of workers.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from governor.errors import GovernorError
from governor.kube.client import Client
from governor.kube.controller import Context, NamespacedName
from governor.kube.objects import ApiResource, ObjectRef
from governor.process.clock import Clock, wait_at_most
from governor.process.reconcile.reconciler import Done, Outcome, Requeue
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Gauge, Registry
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.module_instance import ModuleInstance
from governor.reconciler.kinds.state import State
from governor.reconciler.steps.comparison import compare
from governor.reconciler.steps.health import check_health
from governor.reconciler.steps.inputs import check_connection, check_hold, check_module, check_version, read_values
from governor.reconciler.steps.step import Halt, Paused, Step, Unreachable, Work, run

DEPLOYMENTS: Final = ApiResource(
    "apps", "v1", "Deployment", "deployments", namespaced=True, subresources=frozenset({"scale"})
)
RETRY_S: Final = 5.0
UNREACHABLE_RECHECK_S: Final = 60.0
_MANAGER: Final = "governor-reconciler-scaler"

_log = logging.get_logger(__name__)


class Demand:
    """The clusters and modules that need a worker."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def reason(self) -> str:
        """Why workers are needed, or ``""``."""
        return next(iter(self._reasons.values()), "")

    def set(self, key: str, reason: str) -> None:
        """Set why a worker is needed for a key; empty if none is."""
        before = bool(self._reasons)
        if reason:
            self._reasons[key] = reason
        else:
            self._reasons.pop(key, None)
        if bool(self._reasons) != before:
            self._changed.set()

    async def changed(self) -> None:
        """Wait until workers are needed and were not, or the other way round, since the last call."""
        await self._changed.wait()
        self._changed.clear()


def reason_of_status(instance: ModuleInstance) -> str:
    """Return why a module needs a worker according to its own status, or ``""``. Pure."""
    status, name = instance.status, instance.metadata.name
    if instance.metadata.deletion_timestamp:
        return f"{name} is being removed"
    if status.observed_generation != instance.metadata.generation or status.state is not State.READY:
        return f"{name} is {status.state or State.PENDING}"
    return f"{name} has a notification to send" if status.failure else ""


def reason_of(name: str, result: Work | Halt) -> str:
    """Return why a module needs a worker because of what is observed in its cluster, or ``""``. Pure."""
    if isinstance(result, Unreachable | Paused):
        return ""  # it is compared again when the cluster answers, or is not paused
    if isinstance(result, Work):
        return "" if result.is_settled else f"{name} differs from what was applied"
    return f"{name}: {result.problem.reason}"


class ModuleObservation:
    """Compares modules with what was applied; reports to a Demand."""

    def __init__(self, work_of: Callable[[Context[Any]], Work], demand: Demand, workers: ObjectRef) -> None:
        self._work_of = work_of
        self._demand = demand
        self._workers = workers
        self._steps: Sequence[Step] = (
            check_hold,
            check_module,
            check_connection,
            check_version,
            read_values,
            self._compare,
            check_health,
        )
        """What shows without a write whether a module is as it was applied, and ready."""

    async def reconcile(self, context: Context[ModuleInstance]) -> Outcome:
        """Find out whether a module needs a worker."""
        result = await run(self._steps, self._work_of(context), "NotObserved")
        name = context.key.name
        self._demand.set(name, reason_of_status(context.object) or reason_of(name, result))
        return Requeue(UNREACHABLE_RECHECK_S) if isinstance(result, Unreachable) else Done()

    async def _compare(self, work: Work) -> Work | Halt:
        """Compare the objects of a module; neither the scale nor the readiness of the workers needs a worker."""
        is_own = isinstance(work.cluster, Cluster) and work.cluster.spec.access.in_cluster is not None
        rescaled = (self._workers,) if is_own else ()
        result = await compare(work, rescaled)
        if not isinstance(result, Work):
            return result
        watched = {ref: each for ref, each in result.entries.items() if ref not in rescaled}
        return msgspec.structs.replace(result, entries=watched)

    async def finalize(self, context: Context[ModuleInstance | None]) -> Outcome:
        """Forget a module that is gone."""
        self._demand.set(context.key.name, "")
        return Done()


class WorkerScaler:
    """Scales the Deployment of workers: to one as soon as one is needed, to zero some time after none is."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        deployment: str,
        demand: Demand,
        *,
        idle_s: float,
        clock: Clock,
        registry: Registry,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._deployment = deployment
        self._demand = demand
        self._idle_s = idle_s
        self._clock = clock
        self._replicas = Gauge("governor_reconciler_workers", "Desired number of worker pods.", registry=registry)

    async def run(self, _: Callable[[NamespacedName], None]) -> None:
        """Scale until cancelled; a source of the controller of modules, so that only the leader does."""
        while True:
            reason = self._demand.reason
            if not reason:
                await wait_at_most(self._demand.changed(), self._idle_s, self._clock)
                if self._demand.reason:
                    continue
            is_scaled = await self._scale(1, reason) if reason else await self._scale(0, "all modules are compliant")
            await wait_at_most(self._demand.changed(), None if is_scaled else RETRY_S, self._clock)

    async def _scale(self, replicas: int, reason: str) -> bool:
        try:
            found = await self._client.get(DEPLOYMENTS, self._deployment, self._namespace)
            if int(found["spec"].get("replicas", 1)) != replicas:
                change = {"spec": {"replicas": replicas}}
                await self._client.patch(
                    DEPLOYMENTS, self._deployment, self._namespace, change, manager=_MANAGER, subresource="scale"
                )
                _log.info("workers scaled", replicas=replicas, reason=reason)
        except GovernorError as error:
            _log.warning("cannot scale the workers", deployment=self._deployment, error=str(error), code=error.code)
            return False
        self._replicas.set(replicas)
        return True
