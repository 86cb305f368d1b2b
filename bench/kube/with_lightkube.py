"""The operations with lightkube: AsyncClient, and resources as msgspec structs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightkube import AsyncClient, KubeConfig
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap
from lightkube.types import PatchType

from bench.kube.sample import MANAGER, PAGE_SIZE


class Session:
    """One AsyncClient."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def apply(self, manifest: dict[str, Any]) -> None:
        """Server-side apply: the only patch type that accepts the manifest unchanged."""
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
        """Get a ConfigMap."""
        await self._client.get(ConfigMap, name, namespace=namespace)

    async def watch(self, namespace: str, is_last: Callable[[], bool]) -> None:
        """Watch from the resourceVersion of a list."""
        listed = self._client.list(Deployment, namespace=namespace)
        async for _ in listed:
            pass
        async for _ in self._client.watch(Deployment, namespace=namespace, resource_version=listed.resourceVersion):
            if is_last():
                return

    async def cache(self, namespace: str) -> object:
        """Return the resources of a paged list."""
        listed = self._client.list(Deployment, namespace=namespace, chunk_size=PAGE_SIZE)
        return {item.metadata.name: item async for item in listed}


class Library:
    """One AsyncClient for each kubeconfig."""

    def __init__(self) -> None:
        self._clients: list[AsyncClient] = []

    async def open(self, kubeconfig: Path) -> Session:
        """Return a client from a kubeconfig."""
        client = AsyncClient(KubeConfig.from_file(kubeconfig))
        self._clients.append(client)
        return Session(client)

    async def close(self) -> None:
        """Close all clients."""
        for client in self._clients:
            await client.close()
