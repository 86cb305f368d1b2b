"""The acts with lightkube: its AsyncClient, resources as msgspec structs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightkube import AsyncClient, KubeConfig
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap
from lightkube.types import PatchType

from bench.kube.sample import MANAGER, PAGE


class Session:
    """One AsyncClient."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def apply(self, manifest: dict[str, Any]) -> None:
        """A patch of the type for server-side apply: the only one that takes the manifest as it is."""
        metadata = manifest["metadata"]
        await self._client.patch(
            ConfigMap,
            metadata["name"],
            manifest,
            namespace=metadata["namespace"],
            patch_type=PatchType.APPLY,
            field_manager=MANAGER,
            force=True,
        )

    async def get(self, namespace: str, name: str) -> None:
        """Read a ConfigMap."""
        await self._client.get(ConfigMap, name, namespace=namespace)

    async def watch(self, namespace: str, enough: Callable[[], bool]) -> None:
        """Its watch, from the version of a list."""
        listed = self._client.list(Deployment, namespace=namespace)
        async for _ in listed:
            pass
        async for _ in self._client.watch(Deployment, namespace=namespace, resource_version=listed.resourceVersion):
            if enough():
                return

    async def hold(self, namespace: str) -> object:
        """The resources of a paged list."""
        listed = self._client.list(Deployment, namespace=namespace, chunk_size=PAGE)
        return {item.metadata.name: item async for item in listed}


class Library:
    """One AsyncClient for each kubeconfig."""

    def __init__(self) -> None:
        self._clients: list[AsyncClient] = []

    async def open(self, kubeconfig: Path) -> Session:
        """Load the kubeconfig."""
        client = AsyncClient(KubeConfig.from_file(kubeconfig))
        self._clients.append(client)
        return Session(client)

    async def close(self) -> None:
        """Close all clients."""
        for client in self._clients:
            await client.close()
