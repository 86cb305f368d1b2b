"""The acts with kubernetes_asyncio: generated API classes, its Watch, models in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, AppsV1Api, CoreV1Api
from kubernetes_asyncio.watch import Watch

from bench.kube.sample import MANAGER, PAGE

APPLY = "application/apply-patch+yaml"


class Session:
    """One ApiClient."""

    def __init__(self, api: ApiClient) -> None:
        self._core = CoreV1Api(api)
        self._apps = AppsV1Api(api)

    async def apply(self, manifest: dict[str, Any]) -> None:
        """A patch with the content type of server-side apply."""
        metadata = manifest["metadata"]
        await self._core.patch_namespaced_config_map(
            metadata["name"],
            metadata["namespace"],
            manifest,
            field_manager=MANAGER,
            force=True,
            _content_type=APPLY,
        )

    async def get(self, namespace: str, name: str) -> None:
        """Read a ConfigMap."""
        await self._core.read_namespaced_config_map(name, namespace)

    async def watch(self, namespace: str, enough: Callable[[], bool]) -> None:
        """Its Watch over the list function, from the version of a list."""
        listed = await self._apps.list_namespaced_deployment(namespace)
        version = listed.metadata.resource_version
        async with Watch() as watch:
            async for _ in watch.stream(self._apps.list_namespaced_deployment, namespace, resource_version=version):
                if enough():
                    return

    async def hold(self, namespace: str) -> object:
        """The models of a paged list."""
        held: dict[str, object] = {}
        more = None
        while more != "":
            page = await self._apps.list_namespaced_deployment(
                namespace, limit=PAGE, **({"_continue": more} if more else {})
            )
            held |= {item.metadata.name: item for item in page.items}
            more = page.metadata._continue or ""  # noqa: SLF001
        return held


class Library:
    """One ApiClient for each kubeconfig."""

    def __init__(self) -> None:
        self._clients: list[ApiClient] = []

    async def open(self, kubeconfig: Path) -> Session:
        """Load the kubeconfig."""
        api = await config.new_client_from_config(config_file=str(kubeconfig))
        self._clients.append(api)
        return Session(api)

    async def close(self) -> None:
        """Close all clients."""
        for api in self._clients:
            await api.close()
