"""The cluster of the scenario and all that runs in it: Redis servers, the governor server, runtimes.

There is one node on a machine, so two namespaces stand for the two clusters of the proof of concept. Each has an agent
of its own, in a namespace of its own, with permissions for nothing but its runtime.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from demo.node import pod_session
from demo.world import read_order, write_order
from governor.client import Client
from governor.values.secret import Secret
from governor.wire.rest import ChangeRequest, RevisionProgress
from testbed import images
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr
from testbed.cluster.releases import ServerRelease
from testbed.cluster.workloads import OrderApp, RedisInCluster
from testbed.waiting import until
from toolchain.errors import TestbedError

APP_ID: Final = "nodeapp"
STORES: Final = "stores"
FLEET: Final = "governor"
_SETTLED_WITHIN_S: Final = 30.0


class Runtime(msgspec.Struct):
    """One runtime: a namespace with the order application, governed from another namespace."""

    name: str
    app: OrderApp

    @property
    def agent_namespace(self) -> str:
        """The namespace of its agent and of the agent's state."""
        return f"{self.name}-agent"

    async def pod(self) -> dict[str, Any]:
        """Return the one pod of the application; one that is replaced is deleted soon."""

        async def only_pod() -> list[dict[str, Any]]:
            found = await self.app.pods()
            return found if len(found) == 1 else []

        (pod,) = await until(only_pod, within_s=_SETTLED_WITHIN_S)
        return pod

    async def instance(self) -> str:
        """Return what changes with each restart of the pod or of one of its containers."""
        pod = await self.pod()
        restarts = sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        return f"{pod['metadata']['name']} ({restarts} restarts)"

    async def version_of(self, component: str) -> str:
        """Return what changes with each write of a Component of the namespace."""
        where = (f"component/{component}", f"--namespace={self.name}")
        return await self.app.cluster.kubectl("get", *where, "--output=jsonpath={.metadata.resourceVersion}")

    async def annotate(self, **annotations: str) -> None:
        """Annotate the application's pods, which replaces them, and wait until the new one is ready."""
        template = {"metadata": {"annotations": annotations}}
        patch = json.dumps({"spec": {"template": template}})
        where = (f"deployment/{self.app.name}", f"--namespace={self.app.namespace}")
        await self.app.cluster.kubectl("patch", *where, f"--patch={patch}")
        await self.app.wait_ready()


class World:
    """The programs of the scenario in a cluster that runs Dapr; the cluster ends with what started it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.stores: list[RedisInCluster] = []
        self.runtimes: list[Runtime] = []
        self.server = ServerRelease(cluster, FLEET, directory)
        self.url = ""
        """The URL of the server's API, set by ``install_server``."""
        self.api: Client
        self.http: aiohttp.ClientSession
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.http = await self._stack.enter_async_context(pod_session())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start_stores(self) -> None:
        """Start two Redis servers, each with its own password."""
        await self.cluster.kubectl("create", "namespace", STORES)
        stores = [RedisInCluster(self.cluster, STORES, name) for name in ("redis-1", "redis-2")]
        self.stores = list(await asyncio.gather(*(each.start() for each in stores)))

    async def install_server(self) -> None:
        """Install the governor server from its chart, and open a client with its admin token."""
        await self.cluster.import_image(images.governor(self.directory).file)
        await self.cluster.kubectl("create", "namespace", FLEET)
        await self.server.restrict()
        await self.server.create_volume()
        await self.server.install_for_agents()
        token = Secret((self.directory / "admin.token").read_text(encoding="ascii").strip())
        self.url = await self.server.url()
        client = Client(self.url, lambda: token, ca_file=self.directory / "authority.crt")
        self.api = await self._stack.enter_async_context(client)

    async def deploy_applications(self, names: Sequence[str]) -> None:
        """Deploy the order application into a namespace for each runtime while Dapr injects no sidecars."""
        await self.cluster.import_image(images.order_app().file)
        for name in names:
            await self.cluster.kubectl("create", "namespace", name)
            self.runtimes.append(Runtime(name, OrderApp(self.cluster, name, APP_ID)))
        async with Dapr(self.cluster).without_injector():
            await asyncio.gather(*(each.app.deploy() for each in self.runtimes))

    async def install_agents(self) -> list[str]:
        """Install each runtime's agent with the command that the server prints, and return the commands."""
        return [await self.server.install_agent(each.name, each.agent_namespace) for each in self.runtimes]

    async def change(self, *documents: dict[str, Any], message: str) -> int:
        """Submit a change and return its revision."""
        change = await self.api.change(ChangeRequest(documents, message=message))
        if change.revision is None:
            raise TestbedError(f"the change had no effect: {message}")
        return change.revision

    async def verified(self, revision: int) -> RevisionProgress:
        """Wait until every runtime has verified the revision."""
        async for progress in self.api.progress(revision):
            latest = progress
        return latest

    async def order(self, runtime: Runtime, route: str = "") -> str:
        """Read the order from a runtime's application."""
        return await read_order(self.http, f"{runtime.app.url}{route}")

    async def shown_order(self, runtime: Runtime, route: str) -> str:
        """Read the order from a runtime's application, as soon as its Service forwards to its pod."""
        return await _once_connected(lambda: self.order(runtime, route))

    async def new_order(self, runtime: Runtime, order_id: str, route: str) -> str:
        """Post an order to a runtime's application, as soon as its Service forwards to its pod."""
        return await _once_connected(lambda: write_order(self.http, f"{runtime.app.url}{route}", order_id))


async def _once_connected(request: Callable[[], Awaitable[str]]) -> str:
    """Send a request until there is an answer: kube-proxy may forward to a replaced pod for a second."""

    async def answer() -> str:
        try:
            return await request()
        except (aiohttp.ClientConnectionError, TimeoutError):
            return ""

    return await until(answer, within_s=_SETTLED_WITHIN_S, every_s=0.1)
