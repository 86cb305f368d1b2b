"""Operators on a real API server, for tests of ``governor.kube.controller`` and of the how-to's examples."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec
import yaml

from governor.errors import GovernorError
from governor.kube.applyset import Settings
from governor.kube.client import Client, Transport
from governor.kube.config.access import Access
from governor.kube.controller import Context, Controller, Operator, OperatorSettings
from governor.kube.controller.events import EVENTS
from governor.kube.lease import Timing
from governor.kube.objects import ApiResource, Object
from governor.kube.reflector import View
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Done, Outcome
from governor.process.telemetry.instruments import Registry
from testbed.waiting import until
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEFINITIONS, DEPLOYMENTS, config_map, exists

HOW_TO = Path(__file__).parents[4] / "docs/how-to"
WITHIN_S = 120.0
NAME = "operator"
SITES = ApiResource("example.dev", "v1", "Site", "sites", namespaced=True)
READY = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}


class Data(msgspec.Struct, frozen=True, gc=False):
    size: Annotated[str, msgspec.Meta(pattern="^[0-9]*$")] = ""
    secret: str = ""


class Box(View, frozen=True):
    """View of a ConfigMap; one whose size is not a number does not fit it."""

    data: Data = Data()


def box(name: str, namespace: str, **data: str) -> Object:
    """Return the manifest of a box."""
    manifest = config_map(name, namespace, **data)
    manifest["metadata"]["labels"] = {"box": "yes"}
    return manifest


async def keep_child(context: Context[Box]) -> Outcome:
    """Keep a ConfigMap with the size of the box."""
    child = config_map(f"{context.key.name}-child", size=context.object.data.size)
    return (await context.converge([child])).outcome


def record_names(names: list[str]) -> Callable[[Context[Box]], Awaitable[Outcome]]:
    """Return a reconcile function that only appends the name of each key."""

    async def reconcile(context: Context[Box]) -> Outcome:
        names.append(context.key.name)
        return Done()

    return reconcile


def boxes(
    reconcile: Callable[[Context[Box]], Awaitable[Outcome]] = keep_child, *, name: str = "boxes", **options: Any
) -> Controller[Box]:
    """Return a controller of boxes."""
    settings = Settings(manager=name, label_prefix=f"{name}.example")
    backoff = Backoff(initial_s=0.01, max_s=0.05)
    defaults: dict[str, Any] = {"labels": "box=yes", "backoff": backoff, "recheck_s": 0.1}
    return Controller(name, CONFIG_MAPS, Box, reconcile, settings=settings, **(defaults | options)).owns(CONFIG_MAPS)


def load_example(name: str) -> ModuleType:
    """Return a new module of an example program."""
    specification = importlib.util.spec_from_file_location(f"{name}_example", HOW_TO / f"examples/{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


async def install_sites(client: Client) -> None:
    """Create the definition of the Site kind, and wait until it is served."""
    text = (HOW_TO / "examples/sites.yaml").read_bytes()
    manifest = yaml.safe_load(text)
    await client.apply(DEFINITIONS, manifest, manager="tests")

    async def served() -> bool:
        with suppress(GovernorError):
            return not [each async for each in client.list(SITES, "default")]
        return False

    await until(served, within_s=WITHIN_S)


def site(name: str, namespace: str, **spec: Any) -> Object:
    """Return the manifest of a Site."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "example.dev/v1", "kind": "Site", "metadata": metadata, "spec": {"image": "nginx"} | spec}


class Running:
    """A running operator and its metrics."""

    def __init__(self, operator: Operator, registry: Registry) -> None:
        self.operator = operator
        self.registry = registry
        self.is_stopped = False
        self.task = asyncio.create_task(operator.run())

    def results(self, controller: str, result: str) -> float:
        """Return how many reconciliations had this result."""
        labels = {"controller": controller, "result": result}
        return self.registry.value("controller_runtime_reconcile_total", labels) or 0.0

    def runs(self, controller: str) -> float:
        """Return how many reconciliations there were."""
        return sum(self.results(controller, each) for each in ("success", "error", "requeue", "requeue_after"))

    async def stop(self) -> None:
        """Stop the operator as a signal does, and wait until it has ended."""
        self.is_stopped = True
        self.task.cancel()
        await asyncio.wait({self.task})


def make_operator(
    transport: Transport,
    access: Access,
    namespace: str,
    *controllers: Controller[Any],
    name: str = NAME,
    clock: Clock | None = None,
    registry: Registry | None = None,
    **settings: Any,
) -> Operator:
    """Return an operator of the objects in one namespace."""
    defaults: dict[str, Any] = {"lease": Timing(retry_period_s=0.1), "shutdown_timeout": 5.0}
    return Operator(
        name,
        controllers,
        transport,
        msgspec.structs.replace(access, namespace=namespace),
        registry=registry or Registry(),
        clock=clock or SystemClock(),
        settings=OperatorSettings(watch_namespace=namespace, **(defaults | settings)),
    )


@asynccontextmanager
async def operating(
    transport: Transport, access: Access, namespace: str, *controllers: Controller[Any], **options: Any
) -> AsyncIterator[Running]:
    """Run an operator for the duration of the block; it must end only by cancellation."""
    registry = Registry()
    operator = make_operator(transport, access, namespace, *controllers, registry=registry, **options)
    running = Running(operator, registry)
    try:
        yield running
        assert running.is_stopped or not running.task.done(), running.task
    finally:
        await running.stop()
    assert running.task.cancelled(), running.task


async def until_true(condition: Callable[[], bool]) -> None:
    """Wait for a synchronous condition."""

    async def checked() -> bool:
        return condition()

    await until(checked, within_s=WITHIN_S)


async def set_ready(client: Client, name: str, namespace: str, generation: int = 1) -> None:
    """Write the status of a rolled-out Deployment with two replicas."""
    status = READY | {"observedGeneration": generation}
    await client.patch(DEPLOYMENTS, name, namespace, {"status": status}, manager="deployments", subresource="status")


async def get_or_none(client: Client, kind: Any, name: str, namespace: str) -> Object | None:
    """Return an object, or None if it does not exist."""
    found = [each async for each in client.list(kind, namespace, fields=f"metadata.name={name}")]
    return found[0] if found else None


async def events_of(client: Client, name: str, namespace: str) -> list[Object]:
    """Return the Events about an object."""
    return [each async for each in client.list(EVENTS, namespace, fields=f"involvedObject.name={name}")]


async def event_reasons(client: Client, name: str, namespace: str) -> set[str]:
    """Return the reasons of the Events about an object."""
    return {each["reason"] for each in await events_of(client, name, namespace)}


class Boxes:
    """The boxes of one namespace and their children, as a user sees them."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def create(self, name: str, **data: str) -> None:
        """Create a box."""
        await self._client.create(CONFIG_MAPS, box(name, self._namespace, **data), manager="user")

    async def change(self, name: str, **data: str) -> None:
        """Change the data of a box."""
        await self._client.patch(CONFIG_MAPS, name, self._namespace, {"data": data}, manager="user")

    async def delete(self, name: str) -> None:
        """Delete a box or a child."""
        await self._client.delete(CONFIG_MAPS, name, self._namespace)

    async def child(self, name: str) -> Object | None:
        """Return the child of a box, or None."""
        return await get_or_none(self._client, CONFIG_MAPS, f"{name}-child", self._namespace)

    async def has_child(self, name: str, size: str) -> None:
        """Wait until the child of a box exists with this size."""

        async def found() -> bool:
            child = await self.child(name)
            return child is not None and child["data"].get("size", "") == size

        await until(found, within_s=WITHIN_S)

    async def has_no_child(self, name: str) -> None:
        """Wait until the child of a box is gone."""

        async def gone() -> bool:
            return not await exists(self._client, CONFIG_MAPS, f"{name}-child", self._namespace, terminating=True)

        await until(gone, within_s=WITHIN_S)
