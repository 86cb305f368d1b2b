"""Makes a cluster reconcile itself: this process is its reconciler until the one in the cluster takes over.

The reconciler's own chart is a module like any other, so bootstrap only runs the reconciler. It may be interrupted and
started again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.kube.client import Client, Transport
from governor.kube.config.access import Access
from governor.kube.config.kubeconfig import load_or_in_cluster
from governor.kube.lease import LEASES
from governor.kube.objects import ApiResource, Object
from governor.process.clock import Clock, SystemClock
from governor.process.telemetry import logging
from governor.process.telemetry.instruments import Registry
from governor.reconciler.charts.cache import ChartCache
from governor.reconciler.commands import Hub
from governor.reconciler.kinds.cluster import LOCAL
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, instance_name
from governor.reconciler.kinds.state import State
from governor.reconciler.main import NAME, Reconciler
from governor.reconciler.render.cache import CachingRenderer, RenderCache
from governor.reconciler.render.installed import installed_renderer
from governor.reconciler.settings import PROGRAM, Settings
from governor.reconciler.setup.installation import install
from governor.reconciler.setup.own_modules import AGENT, RECONCILER, SERVER, OwnModule, own_module, publish

_POLL_S: Final = 0.5
JOIN_SECRET: Final = f"{AGENT}-join"


class Bootstrap(msgspec.Struct, frozen=True):
    """What to install in a cluster."""

    namespace: str
    modules: tuple[OwnModule, ...]
    timeout_s: float


def modules_of(image: str, *, with_server: bool, agent_namespaces: Sequence[str]) -> tuple[OwnModule, ...]:
    """Return the governor's programs for a cluster: the reconciler, and on request server and agent."""
    repository, separator, tag = image.rpartition(":")
    if not separator or "/" in tag:  # the port of a registry
        repository, tag = image, ""
    values: dict[str, Any] = {"image": {"repository": repository} | ({"tag": tag} if tag else {})}
    reconciler = own_module(RECONCILER, values)
    if not with_server:
        return (reconciler,)
    if not agent_namespaces:
        raise invalid("agent-namespaces", "an agent manages namespaces: name at least one with --agent-namespace")
    joining = {"namespaces": list(agent_namespaces), "joinToken": {"existingSecret": JOIN_SECRET}}
    server = own_module(SERVER, values)
    return reconciler, server, own_module(AGENT, values | joining, (SERVER,))


def main(hub: Hub, modules: tuple[OwnModule, ...], timeout_s: float, report: Callable[[str], None]) -> None:
    """Bootstrap the cluster of a hub; its own log has only warnings."""
    logging.configure(PROGRAM, level="warning")
    access = load_or_in_cluster(hub.kubeconfig, hub.context)
    asyncio.run(bootstrap(access, Bootstrap(hub.namespace, modules, timeout_s), report))


async def bootstrap(access: Access, wanted: Bootstrap, report: Callable[[str], None]) -> None:
    """Prepare the cluster, install the reconciler in it, and return when that has taken over.

    DEADLINE with the state of the module if this takes too long; what is done stays, and another call continues.
    """
    clock = SystemClock()
    async with Transport() as transport:
        client = Client(transport, access)
        for line in await install(client, wanted.namespace, clock, create_namespace=True):
            report(line)
        for module in wanted.modules:
            for line in await publish(client, wanted.namespace, module):
                report(line)
        watcher = _Watcher(client, wanted, clock, report)
        async with _reconciling(wanted.namespace, transport, access, clock):
            await watcher.installed()
        await watcher.taken_over()
    if any(each.name == AGENT for each in wanted.modules):
        report(f"{AGENT} starts when the Secret {JOIN_SECRET} has a join token of the server under the key token")
    report(f"the cluster reconciles itself: kubectl get governor --namespace {wanted.namespace}")


@asynccontextmanager
async def _reconciling(namespace: str, transport: Transport, access: Access, clock: Clock) -> AsyncIterator[None]:
    """Be the reconciler of the hub for the duration of the block, unless another one holds its Lease."""
    with TemporaryDirectory(prefix=NAME) as scratch:
        async with installed_renderer(size=1) as renderer:
            reconciler = Reconciler(
                Settings(namespace=namespace, local_cluster=True),
                transport,
                access,
                charts=ChartCache(Path(scratch)),
                renderer=CachingRenderer(renderer, RenderCache()),
                registry=Registry(),
                clock=clock,
            )
            tasks = [asyncio.create_task(each()) for each in (reconciler.reachability.run, reconciler.run)]
            try:
                yield
            finally:
                for task in reversed(tasks):
                    task.cancel()
                await asyncio.wait(tasks)


class _Watcher:
    """Waits for what the reconciler does, and reports each new state."""

    def __init__(self, client: Client, wanted: Bootstrap, clock: Clock, report: Callable[[str], None]) -> None:
        self._client = client
        self._wanted = wanted
        self._clock = clock
        self._report = report
        self._deadline_s = clock.monotonic() + wanted.timeout_s
        self._last = ""

    async def installed(self) -> None:
        """Wait until the reconciler in the cluster is ready, and installed by this process or by another."""
        own = next(each for each in self._wanted.modules if each.name == RECONCILER)
        while True:
            found = await self._get(MODULE_INSTANCE.resource, instance_name(RECONCILER, LOCAL))
            status = found.get("status", {})
            applied = status.get("lastApplied", {}).get("chartDigest")
            self._show(f"{RECONCILER}: {status.get('state', State.PENDING)}: {status.get('message', 'not begun')}")
            if status.get("state") == State.READY and applied == own.digest:
                return
            await self._wait(f"{RECONCILER} is not ready: {status.get('message', 'it is not placed yet')}")

    async def taken_over(self) -> None:
        """Wait until a reconciler in the cluster holds the Lease that this process has released."""
        while not (holder := (await self._get(LEASES, NAME)).get("spec", {}).get("holderIdentity")):
            await self._wait(f"no reconciler in the cluster has taken the Lease {NAME}: read the log of its pod")
        self._report(f"reconciler {holder} has taken over")

    async def _get(self, resource: ApiResource, name: str) -> Object:
        try:
            return await self._client.get(resource, name, self._wanted.namespace)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return {}

    def _show(self, line: str) -> None:
        if line != self._last:
            self._last = line
            self._report(line)

    async def _wait(self, why: str) -> None:
        if self._clock.monotonic() > self._deadline_s:
            message = f"not done within {self._wanted.timeout_s:g} s: {why}. Run the command again to continue"
            raise GovernorError(Kind.DEADLINE, "bootstrap-timeout", message)
        await self._clock.sleep(_POLL_S)
