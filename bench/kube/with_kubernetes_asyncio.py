"""The operations with kubernetes_asyncio: generated API classes, Watch, and model objects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, AppsV1Api, CoreV1Api
from kubernetes_asyncio.watch import Watch

from bench.kube.sample import MANAGER, PAGE_SIZE

APPLY_PATCH = "application/apply-patch+yaml"


class Session:
    """One ApiClient."""

    def __init__(self, api: ApiClient) -> None:
        self._core = CoreV1Api(api)
        self._apps = AppsV1Api(api)

    async def apply(self, manifest: dict[str, Any]) -> None:
        """Server-side apply: a patch with its content type."""
        metadata = manifest["metadata"]
        await self._core.patch_namespaced_config_map(
            metadata["name"],
            metadata["namespace"],
            manifest,
            field_manager=MANAGER,
            force=True,
            _content_type=APPLY_PATCH,
        )

    async def get(self, namespace: str, name: str) -> None:
        """Get a ConfigMap."""
        await self._core.read_namespaced_config_map(name, namespace)

    async def watch(self, namespace: str, is_last: Callable[[], bool]) -> None:
        """Watch from the resourceVersion of a list."""
        listed = await self._apps.list_namespaced_deployment(namespace)
        version = listed.metadata.resource_version
        async with Watch() as watch:
            async for _ in watch.stream(self._apps.list_namespaced_deployment, namespace, resource_version=version):
                if is_last():
                    return

    async def cache(self, namespace: str) -> object:
        """Return the models of a paged list."""
        cached: dict[str, object] = {}
        token = None
        while token != "":
            page = await self._apps.list_namespaced_deployment(
                namespace, limit=PAGE_SIZE, **({"_continue": token} if token else {})
            )
            cached |= {item.metadata.name: item for item in page.items}
            token = page.metadata._continue or ""  # noqa: SLF001
        return cached


class Library:
    """One ApiClient for each kubeconfig."""

    def __init__(self) -> None:
        self._clients: list[ApiClient] = []

    async def open(self, kubeconfig: Path) -> Session:
        """Return a client from a kubeconfig."""
        api = await config.new_client_from_config(config_file=str(kubeconfig))
        self._clients.append(api)
        return Session(api)

    async def close(self) -> None:
        """Close all clients."""
        for api in self._clients:
            await api.close()
