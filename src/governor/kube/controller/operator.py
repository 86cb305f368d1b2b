"""The operator: runs controllers while it leads, with health, readiness and metrics, and stops them in order."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

import governor
from governor.errors import GovernorError
from governor.kube.client import Client, Limits, Transport
from governor.kube.config import kubeconfig
from governor.kube.config.access import Access
from governor.kube.controller import events
from governor.kube.controller.controller import Controller
from governor.kube.controller.reconciliation import Environment
from governor.kube.controller.term import Term
from governor.kube.lease import LIMITS, LeaderElector, Timing, master_status_gauge
from governor.process import supervise
from governor.process.address import Address, listen
from governor.process.clock import Clock, SystemClock
from governor.process.reconcile.reconciler import ReconcileMetrics
from governor.process.settings import load
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.instruments import Registry
from governor.process.telemetry.metrics import LoopLag, program_registry

_STOP_S: Final = 5.0
"""Time to write the last Events and to release the Lease, after the reconciliations."""

_log = logging.get_logger(__name__)


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of an operator, from ``GOVERNOR_<NAME>_...`` variables or a file (``governor.process.settings``)."""

    watch_namespace: Annotated[
        str, msgspec.Meta(description="Namespace of the watched objects; empty for all namespaces.")
    ] = ""
    namespace: Annotated[
        str,
        msgspec.Meta(
            description="Namespace of the Lease and of cluster-scoped objects' inventories; "
            "default: that of the pod or the kubeconfig.",
        ),
    ] = ""
    resync_interval: Annotated[
        float, msgspec.Meta(description="Mean time between two reconciliations of every object, in seconds.", gt=0)
    ] = 3600.0
    shutdown_timeout: Annotated[
        float, msgspec.Meta(description="Time for running reconciliations to finish, in seconds.", ge=0)
    ] = 10.0
    health_listen: Annotated[
        Address, msgspec.Meta(description="Address of /healthz, /readyz and /metrics; port 0 chooses a free port.")
    ] = Address("127.0.0.1", 0)
    log_level: Annotated[logging.Level, msgspec.Meta(description="Minimum level of log events.")] = "info"
    lease: Timing = Timing()


class Operator:
    """Runs controllers while it holds its Lease; each term starts with new caches and queues."""

    def __init__(
        self,
        name: str,
        controllers: Sequence[Controller[Any]],
        transport: Transport,
        access: Access,
        *,
        registry: Registry,
        clock: Clock,
        settings: OperatorSettings = OperatorSettings(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        names = [each.name for each in controllers]
        if len(set(names)) != len(names):
            raise ValueError(f"the controllers of an operator must have different names, not {names}")
        namespace = settings.namespace or access.namespace
        self._controllers = tuple(controllers)
        self._recorder = events.EventRecorder(Client(transport, access, events.LIMITS), name, clock, registry)
        self._environment = Environment(
            Client(transport, access, limits),
            self._recorder,
            ReconcileMetrics(registry),
            clock,
            namespace,
            settings.watch_namespace,
            settings.resync_interval,
            settings.shutdown_timeout,
            lambda: self.is_leader,
        )
        self._elector = LeaderElector(
            Client(transport, access, LIMITS),
            namespace,
            name,
            socket.gethostname(),
            clock=clock,
            status=master_status_gauge(registry),
            timing=settings.lease,
        )
        self._term: Term | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this operator holds the Lease."""
        return self._elector.is_leader

    def not_ready(self) -> str:
        """Return why the operator is not ready, or ``""``; one that does not lead is ready to take over."""
        return self._term.not_ready() if self._term else ""

    async def run(self) -> None:
        """Run until cancelled; then finish running reconciliations, release the Lease and write the last Events."""
        recording = asyncio.create_task(self._recorder.run())
        leading = asyncio.create_task(self._elector.run(self._lead))
        try:
            await asyncio.wait({recording, leading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leading, recording):
                task.cancel()
                await asyncio.wait({task})
        for task in (leading, recording):
            if not task.cancelled():
                task.result()

    async def _lead(self) -> None:
        self._term = Term(self._controllers, self._environment)
        try:
            await self._term.run(lambda: self._elector.is_leader)
        finally:
            self._term = None


def main(name: str, *controllers: Controller[Any]) -> int:
    """Run an operator in a pod, or with the user's kubeconfig, until a signal arrives; return the exit code."""
    try:
        settings = load(OperatorSettings, name)
    except GovernorError as error:
        logging.configure(name)
        return _cannot_start(error)
    logging.configure(name, level=settings.log_level)
    try:
        access = kubeconfig.load_or_in_cluster()
        return supervise.main(lambda: _program(name, controllers, access, settings))
    except GovernorError as error:
        return _cannot_start(error)


def _cannot_start(error: GovernorError) -> int:
    _log.error("cannot start", error=str(error), code=error.code)
    return supervise.EXIT_FAILED


async def _program(
    name: str, controllers: Sequence[Controller[Any]], access: Access, settings: OperatorSettings
) -> int:
    clock, lifecycle, checks = SystemClock(), supervise.Lifecycle(), Checks()
    registry = program_registry(name, governor.__version__)
    async with Transport(registry=registry) as transport:
        operator = Operator(name, controllers, transport, access, registry=registry, clock=clock, settings=settings)
        checks.ready("program", lifecycle.not_ready)
        checks.ready("controllers", operator.not_ready)
        components = [
            supervise.Component("health", HealthServer(listen(settings.health_listen), checks, registry).run),
            supervise.Component("event loop lag", LoopLag(registry, clock).run),
            supervise.Component("operator", operator.run),
        ]
        grace_s = settings.shutdown_timeout + _STOP_S
        return await supervise.run_program(components, grace_s=grace_s, lifecycle=lifecycle)
