"""The operations with governor.kube: its client, and its reflector with a view of the readiness fields."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.kube.sample import MANAGER
from governor.kube.client import Client, Limits, Transport
from governor.kube.config.kubeconfig import load
from governor.kube.objects import ApiResource
from governor.kube.reflector import Event, Metadata, Reflector, View
from governor.process.clock import SystemClock
from governor.process.flowcontrol.limiter import Rate

CONFIG_MAP: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
DEPLOYMENT: Final = ApiResource("apps", "v1", "Deployment", "deployments", namespaced=True)

UNLIMITED: Final = Limits(rate=Rate(per_s=1e6, burst=1_000_000))


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One condition of the status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class Spec(msgspec.Struct, frozen=True, gc=False):
    """The desired state."""

    replicas: int = 1


class Status(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The observed state."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class DeploymentMetadata(Metadata, frozen=True, gc=False):
    """Identity, generation and labels."""

    generation: int = 0
    labels: Mapping[str, str] = {}


class Deployment(View, frozen=True, gc=False):
    """The fields that readiness and ownership need."""

    metadata: DeploymentMetadata
    spec: Spec = Spec()
    status: Status = Status()


class Session:
    """A client of one cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def apply(self, manifest: dict[str, Any]) -> None:
        """Server-side apply."""
        await self._client.apply(CONFIG_MAP, manifest, manager=MANAGER, force=True)

    async def get(self, namespace: str, name: str) -> None:
        """Get a ConfigMap."""
        await self._client.get(CONFIG_MAP, name, namespace)

    async def watch(self, namespace: str, is_last: Callable[[], bool]) -> None:
        """Watch with a reflector, which also maintains its store."""
        done = asyncio.Event()

        def on_event(_: Event[Deployment]) -> None:
            if reflector.is_synced and is_last():
                done.set()

        reflector = self._reflector(namespace, on_event)
        async with _running(reflector):
            await done.wait()

    async def cache(self, namespace: str) -> object:
        """Return the store of a synced reflector."""
        reflector = self._reflector(namespace, lambda _: None)
        async with _running(reflector):
            await reflector.synced()
        return reflector.store

    def _reflector(self, namespace: str, on_event: Callable[[Event[Deployment]], None]) -> Reflector[Deployment]:
        return Reflector(
            self._client, DEPLOYMENT, Deployment, clock=SystemClock(), on_event=on_event, namespace=namespace
        )


class Library:
    """Clients that share one transport."""

    def __init__(self) -> None:
        self._transport = Transport()

    async def open(self, kubeconfig: Path) -> Session:
        """Return a client from a kubeconfig."""
        return Session(Client(self._transport, load(kubeconfig), UNLIMITED))

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()


@asynccontextmanager
async def _running(reflector: Reflector[Deployment]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(reflector.run())
        yield
        task.cancel()
