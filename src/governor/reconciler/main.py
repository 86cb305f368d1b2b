"""The reconciler program: assembles the parts and runs them. The only module that imports every part."""

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import governor
from governor.errors import GovernorError
from governor.kube.client import Client, Limits, Transport
from governor.kube.config.access import Access
from governor.kube.config.kubeconfig import load_or_in_cluster
from governor.kube.controller import Controller, Operator, OperatorSettings
from governor.kube.lease import Timing
from governor.kube.objects import ObjectRef
from governor.process import supervise
from governor.process.address import listen
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.flowcontrol.limiter import Rate
from governor.process.supervise import Component, Lifecycle
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.instruments import Registry
from governor.process.telemetry.metrics import LoopLag, program_registry
from governor.reconciler.charts.cache import ChartCache
from governor.reconciler.controllers.channels import channels_controller
from governor.reconciler.controllers.cluster_states import cluster_states_controller
from governor.reconciler.controllers.clusters import clusters_controller
from governor.reconciler.controllers.demand import DEPLOYMENTS, Demand, ModuleObservation, WorkerScaler
from governor.reconciler.controllers.installations import installations_controller
from governor.reconciler.controllers.module_instances import (
    ModuleWork,
    module_instances_controller,
    module_observation_controller,
)
from governor.reconciler.controllers.notifications import (
    Wakeups,
    cluster_notifications_controller,
    module_notifications_controller,
)
from governor.reconciler.controllers.watched import MANAGER
from governor.reconciler.notifications.delivery import Deliveries
from governor.reconciler.notifications.webhook import Webhooks, read_endpoint
from governor.reconciler.release.reference import ensure_key
from governor.reconciler.render.cache import CachingRenderer, RenderCache
from governor.reconciler.render.installed import installed_renderer
from governor.reconciler.render.request import Renderer
from governor.reconciler.settings import PROGRAM, Settings
from governor.reconciler.setup.definitions import DefinitionInstaller
from governor.reconciler.setup.installation import ensure_local_cluster
from governor.reconciler.states.totals import Totals
from governor.reconciler.steps.step import Tools
from governor.reconciler.target_watches import TargetWatches
from governor.reconciler.targets import Reachability, Targets

NAME: Final = "governor-reconciler"
"""Name of the Lease, and of the source of Events."""
_STOP_S: Final = 5.0
"""Time to write the last Events and to release the Lease, after the reconciliations."""
_BACKOFF: Final = Backoff(initial_s=0.5, max_s=30.0)

_log = logging.get_logger(__name__)


class Reconciler:
    """The assembled parts of a reconciler."""

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        access: Access,
        *,
        charts: ChartCache,
        renderer: Renderer,
        registry: Registry,
        clock: Clock,
        lease: Timing = Timing(),  # noqa: B008 - frozen
    ) -> None:
        limits = Limits(rate=Rate(per_s=settings.requests_per_second, burst=int(2 * settings.requests_per_second) + 1))
        self._settings = settings
        self._clock = clock
        self._hub = Client(transport, access, limits)
        targets = Targets(transport, self._hub, access, limits)
        self.reachability = Reachability(targets, clock)
        self._targets = TargetWatches(targets, self._hub, settings.namespace, clock)
        self._deliveries = Deliveries(Webhooks(clock), partial(read_endpoint, self._hub, settings.namespace))
        self._work = ModuleWork(Tools(self._hub, charts, renderer), self._targets, clock, self._deliveries)
        self._demand = Demand()
        self.operator = Operator(
            f"{NAME}-worker" if settings.role == "work" else NAME,
            self._controllers(registry),
            transport,
            access,
            registry=registry,
            clock=clock,
            settings=OperatorSettings(
                namespace=settings.namespace,
                watch_namespace=settings.namespace,
                resync_interval=settings.resync_interval,
                shutdown_timeout=settings.shutdown_timeout,
                lease=lease,
            ),
            limits=limits,
        )
        self._not_prepared = "the definitions of the kinds are not checked yet"

    def _controllers(self, registry: Registry) -> Sequence[Controller[Any]]:
        match self._settings.role:
            case "watch":
                return (*self._watching(registry), self._observing(registry))
            case "work":
                return self._working()
            case "all":
                return (*self._watching(registry), *self._working())

    def _working(self) -> Sequence[Controller[Any]]:
        modules = Wakeups()
        return (
            module_instances_controller(self._work, self._targets, modules),
            module_notifications_controller(self._deliveries, modules),
        )

    def _observing(self, registry: Registry) -> Controller[Any]:
        settings = self._settings
        scaler = WorkerScaler(
            self._hub,
            settings.namespace,
            settings.worker_deployment,
            self._demand,
            idle_s=settings.worker_idle,
            clock=self._clock,
            registry=registry,
        )
        workers = ObjectRef(DEPLOYMENTS.group, DEPLOYMENTS.kind, settings.namespace, settings.worker_deployment)
        observation = ModuleObservation(self._work.work_of, self._demand, workers)
        return module_observation_controller(observation, self._targets, scaler)

    def _watching(self, registry: Registry) -> Sequence[Controller[Any]]:
        clusters = Wakeups()
        return (
            clusters_controller(self._clock),
            cluster_states_controller(
                self._clock,
                self.reachability,
                self._settings.unknown_after,
                self._targets.forget,
                self._deliveries,
                clusters,
                self._demand,
                Totals(registry),
            ),
            installations_controller(self._clock),
            channels_controller(),
            cluster_notifications_controller(self._deliveries, clusters),
        )

    def not_ready(self) -> str:
        """Return why the reconciler is not ready, or ``""``."""
        return self._not_prepared or self.operator.not_ready()

    async def run(self) -> None:
        """Prepare the hub, then run the controllers until cancelled."""
        retries = Retries(_BACKOFF, random.Random())  # noqa: S311 - jitter
        while self._not_prepared:
            try:
                await self._prepare()
            except GovernorError as error:
                self._not_prepared = str(error)
                _log.warning("cannot prepare the hub yet; retrying", error=str(error), code=error.code)
                await self._clock.sleep(retries.next_delay_s())
        await self.operator.run()

    async def _prepare(self) -> None:
        self._work.key = await ensure_key(self._hub, self._settings.namespace, MANAGER)
        if self._settings.role == "work":
            self._not_prepared = ""
            return
        for each in await DefinitionInstaller(self._hub, self._clock).install():
            _log.info("definition checked", definition=each.name, action=each.action, migrated=each.migrated)
        if self._settings.local_cluster:
            await ensure_local_cluster(self._hub, self._settings.namespace)
        self._not_prepared = ""


def main(settings: Settings) -> int:
    """Run the reconciler until it stops and return the exit code."""
    logging.configure(PROGRAM, level=settings.log_level)
    return supervise.main(lambda: run(settings, load_or_in_cluster(settings.kubeconfig)))


async def run(settings: Settings, access: Access) -> int:
    """Run the reconciler's components until a signal arrives and return the exit code."""
    clock, lifecycle, checks = SystemClock(), Lifecycle(), Checks()
    registry = program_registry(PROGRAM, governor.__version__)
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(Transport(registry=registry))
        renderer = await stack.enter_async_context(installed_renderer(settings.renderers))
        charts = ChartCache(settings.chart_cache or Path(stack.enter_context(TemporaryDirectory(prefix=NAME))))
        caching = CachingRenderer(renderer, RenderCache())
        reconciler = Reconciler(
            settings, transport, access, charts=charts, renderer=caching, registry=registry, clock=clock
        )
        checks.ready("lifecycle", lifecycle.not_ready)
        checks.ready("reconciler", reconciler.not_ready)
        components = [
            Component("health", HealthServer(listen(settings.health_listen), checks, registry).run),
            Component("loop-lag", LoopLag(registry, clock).run),
            Component("reachability", reconciler.reachability.run),
            Component("reconciler", reconciler.run),
        ]
        grace_s = settings.shutdown_timeout + _STOP_S
        return await supervise.run_program(components, grace_s=grace_s, lifecycle=lifecycle)
