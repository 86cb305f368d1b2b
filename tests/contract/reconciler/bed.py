"""A hub on a real API server: manifests of its kinds, and a reconciler that runs in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Transport
from governor.kube.config.access import Access
from governor.kube.errors import NO_API
from governor.kube.lease import Timing
from governor.kube.objects import Object
from governor.process.clock import Clock, SystemClock
from governor.process.telemetry.instruments import Registry
from governor.reconciler.charts.cache import ChartCache
from governor.reconciler.charts.digests import digest_of
from governor.reconciler.kinds import DEFINITIONS
from governor.reconciler.kinds.definition import GROUP, VERSION
from governor.reconciler.main import Reconciler
from governor.reconciler.render.cache import CachingRenderer, RenderCache
from governor.reconciler.render.request import Rendered, Renderer, Request
from governor.reconciler.settings import Settings
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import admin_of
from tests.contract.reconciler.render.bed import CHARTS

RESOURCES = {each.kind: each.resource for each in DEFINITIONS}
CHART = CHARTS / "objects"
"""A chart that renders the objects in its values."""
DIGESTS = {version: f"sha256:{number:064x}" for number, version in enumerate(("1.0.0", "1.1.0", "2.0.0"))}
WITHIN_S = 60.0
LOCAL: Object = {"access": {"inCluster": {}}}


def manifest(kind: str, name: str, spec: Object, namespace: str = "", **labels: str) -> Object:
    """Return the manifest of an object of the reconciler."""
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata, "spec": spec}


def module_spec(name: str, version: str = "1.0.0", **more: Any) -> Object:
    """Return the spec of a Module whose chart renders nothing without values."""
    chart = {"directory": str(CHART), "digest": digest_of(CHART)}
    return {"module": name, "version": version, "chart": chart, "namespace": "default"} | more


def installation_spec(module: str, version: str = "1.0.0", **more: Any) -> Object:
    """Return the spec of an Installation on the cluster ``local``, unless ``more`` says otherwise."""
    where = {} if "clusterSelector" in more else {"cluster": "local"}
    which = {} if "channel" in more else {"version": version}
    return {"module": module, **where, **which, **more}


class CountingRenderer:
    """A renderer that records what it renders."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.requests: list[Request] = []

    async def render(self, request: Request) -> Rendered:
        self.requests.append(request)
        return await self._renderer.render(request)


class HubBed:
    """One hub namespace, as its users see it."""

    def __init__(
        self,
        plane: ControlPlane,
        client: Client,
        transport: Transport,
        namespace: str,
        charts: Path,
        renderer: Renderer,
    ) -> None:
        self.charts = charts
        """Directory of the chart cache."""
        self.renderer = renderer
        self.plane = plane
        self.client = client
        self.transport = transport
        self.namespace = namespace

    @asynccontextmanager
    async def reconciling(
        self, access: Access | None = None, *, clock: Clock | None = None, **settings: Any
    ) -> AsyncIterator[Registry]:
        """Run a reconciler for the duration of the block, and yield its metrics; it must end only by cancellation."""
        registry = Registry()
        reconciler = Reconciler(
            Settings(namespace=self.namespace, shutdown_timeout=5.0, **settings),
            self.transport,
            access or admin_of(self.plane),
            charts=ChartCache(self.charts),
            renderer=CachingRenderer(self.renderer, RenderCache()),
            registry=registry,
            clock=clock or SystemClock(),
            lease=Timing(retry_period_s=0.1),
        )
        tasks = [asyncio.create_task(each()) for each in (reconciler.reachability.run, reconciler.run)]
        try:
            yield registry
            assert not [each for each in tasks if each.done()]
        finally:
            for task in reversed(tasks):
                task.cancel()
                await asyncio.wait({task})
        assert all(each.cancelled() for each in tasks), tasks

    async def apply(self, kind: str, name: str, spec: Object, **labels: str) -> Object:
        """Apply an object as a user."""
        found = manifest(kind, name, spec, self.namespace, **labels)
        return await self.client.apply(RESOURCES[kind], found, manager="user", force=True)

    async def add_module(self, name: str, version: str = "1.0.0", **more: Any) -> None:
        """Create a Module."""
        await self.apply("Module", f"{name}-{version}", module_spec(name, version, **more))

    async def install(self, name: str, module: str, version: str = "1.0.0", **more: Any) -> None:
        """Apply an Installation."""
        await self.apply("Installation", name, installation_spec(module, version, **more))

    async def delete(self, kind: str, name: str) -> None:
        """Delete an object as a user."""
        await self.client.delete(RESOURCES[kind], name, self.namespace)

    async def get(self, kind: str, name: str) -> Object:
        """Return an object, empty if it does not exist or its kind is not served yet."""
        try:
            return await self.client.get(RESOURCES[kind], name, self.namespace)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND and error.code != NO_API:
                raise
            return {}

    async def instances(self) -> dict[str, Object]:
        """Return all ModuleInstances by name."""
        found = [each async for each in self.client.list(RESOURCES["ModuleInstance"], self.namespace)]
        return {each["metadata"]["name"]: each for each in found}

    async def shows(self, kind: str, name: str, expected: Callable[[Object], object]) -> Object:
        """Wait until an object satisfies a condition, and return it; a missing one is empty."""
        last: Object = {}

        async def found() -> Object | None:
            nonlocal last
            last = await self.get(kind, name)
            return last if last and expected(last) else None

        try:
            return (await until(found, within_s=WITHIN_S, every_s=0.02)) or {}
        except TimeoutError as error:
            raise AssertionError(f"{kind} {name} did not come to satisfy the condition: {last}") from error

    async def gone(self, kind: str, name: str) -> None:
        """Wait until an object does not exist."""
        last: Object = {}

        async def absent() -> bool:
            nonlocal last
            last = await self.get(kind, name)
            return not last

        try:
            await until(absent, within_s=WITHIN_S, every_s=0.02)
        except TimeoutError as error:
            raise AssertionError(f"{kind} {name} still exists: {last}") from error


def runs(registry: Registry, controller: str) -> float:
    """Return how many reconciliations a controller has done."""
    results = ("success", "error", "requeue", "requeue_after")
    labels = [{"controller": controller, "result": each} for each in results]
    return sum(registry.value("controller_runtime_reconcile_total", each) or 0.0 for each in labels)


def state(found: Object) -> str:
    """Return the state of an object."""
    return str(found.get("status", {}).get("state", ""))


def condition(found: Object, condition_type: str) -> Object:
    """Return a condition of an object, empty if it has none of this type."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == condition_type), {})


def reason(found: Object, condition_type: str = "Resolved") -> str:
    """Return the reason of a condition."""
    return str(condition(found, condition_type).get("reason", ""))
