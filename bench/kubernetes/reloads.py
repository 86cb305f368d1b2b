"""Hot reloads in a real cluster with real Dapr: our agent beside ``kubectl apply`` alone, in interleaved rounds.

Each method has a namespace with the same application, and points it back and forth between two Redis servers that hold
different orders. A prober requests the order from the application, at the same rate for both methods, while a change
of its namespace is under way: it sees when the sidecar uses the other store, and which requests fail.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from bench.kubernetes.agent import STATE, Agent, joined
from bench.kubernetes.methods import GOVERNOR, KUBECTL, GovernorMethod, KubectlMethod, Method
from bench.kubernetes.writes import Writes
from demo.prober import Prober
from demo.world import World, read_order
from testbed import images
from testbed.builds.dapr import VERSION
from testbed.cluster import host
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr
from testbed.cluster.workloads import OrderApp, RedisInCluster, apply
from testbed.waiting import until
from toolchain.repository import REPOSITORY

PROBE_EVERY_S: Final = 0.01
ORDERS: Final = ("foo", "bar")
"""The order in each store."""
_STATUS_OBJECTS: Final = "src/governor/agent/platforms/kubernetes/visibility/runtimestatuses.yaml"
_STORES: Final = "stores"
_REQUESTS_BEFORE: Final = 20
_REQUESTS_AFTER: Final = 50
_PAUSE_S: Final = 0.5
"""Between two changes: the agent stores and announces a result after it has reported it."""
_TIMEOUT_S: Final = 60.0
_ROUNDS_PER_PREFLIGHT: Final = 5


class Reload(msgspec.Struct, frozen=True):
    """One change, with times in seconds since the epoch, and the requests that failed meanwhile."""

    began: float
    """When the server accepted the change, or kubectl was started."""
    written: float
    """When the API server had the component."""
    seen: float
    """When the application first answered from the other store."""
    done: float
    """When the server had the agent's proof, or kubectl exited."""
    failures: tuple[tuple[float, str], ...] = ()
    """When requests failed, and how."""


class Reloads(msgspec.Struct, frozen=True):
    """The changes by method, one per round, and what the agent needed for its own."""

    by_method: dict[str, list[Reload]]
    requests: float
    """To the API server, for each change."""
    resident_mib: float
    preflighted: tuple[float, ...] = ()
    """Seconds from acceptance to proof of changes that a throw-away pod tried first."""


class Application:
    """The application in the namespace of one method."""

    def __init__(self, method: Method, app: OrderApp, http: aiohttp.ClientSession, writes: Writes) -> None:
        self.app = app
        self.method = method
        self._http = http
        self._writes = writes

    async def change(self, redis: RedisInCluster, order: str) -> Reload:
        """Point the application to the store that holds the order and measure until the change is seen and done."""
        async with Prober(lambda: read_order(self._http, self.app.url), PROBE_EVERY_S) as prober:
            await prober.more(_REQUESTS_BEFORE)
            async with asyncio.timeout(_TIMEOUT_S):
                times = await self.method.change(redis)
                seen = await prober.first(order, times.began)
                await prober.more(_REQUESTS_AFTER)
        written = self._writes.first(self.method.namespace, times.began)
        return Reload(times.began, written, seen, times.done, tuple(prober.failures(times.began)))


async def measure(directory: Path, rounds: int, log: Callable[[str], None]) -> Reloads:
    """Start the cluster and everything in it, and run all rounds."""
    async with (
        real_cluster(directory / "cluster", log) as cluster,
        World(directory / "world", {}) as world,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        stores = await start_stores(cluster)
        await prepare(cluster, stores)
        methods: dict[str, Method] = {GOVERNOR: GovernorMethod(world), KUBECTL: KubectlMethod(cluster)}
        async with (
            joined(directory / "agent", world, cluster.kubeconfig, GovernorMethod.namespace, {}) as agent,
            Writes(cluster.kubeconfig) as writes,
        ):
            applications = {
                name: Application(each, await OrderApp(cluster, each.namespace, "orders").start(), http, writes)
                for name, each in methods.items()
            }
            await place_orders(applications, stores)
            found = await run_rounds(applications, stores, rounds, agent, log)
            trials = GovernorMethod(world, preflight="sidecar")
            return msgspec.structs.replace(found, preflighted=await with_preflight(trials, stores, rounds, log))


@asynccontextmanager
async def real_cluster(directory: Path, log: Callable[[str], None]) -> AsyncIterator[Cluster]:
    """Start the machine's one cluster with Dapr, and stop it at the end."""
    cluster = Cluster(directory, "`make bench-kubernetes`")
    log("starting a cluster with Dapr, which takes a minute")
    await cluster.start(host.programs(), [images.pause().file, images.busybox().file], notify=log)
    try:
        await Dapr(cluster).bring_to(VERSION)
        yield cluster
    finally:
        await cluster.stop()


async def start_stores(cluster: Cluster) -> list[RedisInCluster]:
    """Start the Redis servers."""
    await cluster.kubectl("create", "namespace", _STORES)
    stores = [RedisInCluster(cluster, _STORES, name) for name in ("first", "second")]
    return [await each.start() for each in stores]


async def prepare(cluster: Cluster, stores: Sequence[RedisInCluster]) -> None:
    """Create the namespaces, the definition of status objects, and the Secrets that kubectl's component refers to."""
    for name in (STATE, GovernorMethod.namespace, KubectlMethod.namespace):
        await cluster.kubectl("create", "namespace", name)
    await cluster.kubectl("apply", "--server-side", f"--filename={REPOSITORY / _STATUS_OBJECTS}")
    secrets = [each for redis in stores for each in redis.manifests if each["kind"] == "Secret"]
    await apply(cluster, KubectlMethod.namespace, *secrets)


async def place_orders(applications: Mapping[str, Application], stores: Sequence[RedisInCluster]) -> None:
    """Place an order in each store, and point all applications to the last one."""
    for redis, order in zip(stores, ORDERS, strict=True):
        await applications[GOVERNOR].method.change(redis)  # proven: the order goes to this store
        await applications[GOVERNOR].app.place_order(order)
    await applications[KUBECTL].method.change(stores[-1])
    await until(lambda: applications[KUBECTL].app.has_order(ORDERS[-1]), within_s=_TIMEOUT_S)


async def run_rounds(
    applications: Mapping[str, Application],
    stores: Sequence[RedisInCluster],
    rounds: int,
    agent: Agent,
    log: Callable[[str], None],
) -> Reloads:
    """Change each application once in each round."""
    reloads: dict[str, list[Reload]] = {name: [] for name in applications}
    before = await agent.api_requests()
    for number, (store, names) in enumerate(turns(rounds, tuple(applications))):
        for name in names:
            reloads[name].append(await applications[name].change(stores[store], ORDERS[store]))
            await asyncio.sleep(_PAUSE_S)
        if (number + 1) % 10 == 0:
            log(f"{number + 1} of {rounds} rounds")
    return Reloads(reloads, (await agent.api_requests() - before) / rounds, agent.resident_mib)


async def with_preflight(
    method: GovernorMethod, stores: Sequence[RedisInCluster], rounds: int, log: Callable[[str], None]
) -> tuple[float, ...]:
    """Change the store with preflight, a fifth as often as without."""
    times = []
    for number in range(max(rounds // _ROUNDS_PER_PREFLIGHT, 1)):
        times.append(await method.change(stores[number % 2]))
        await asyncio.sleep(_PAUSE_S)
    log(f"{len(times)} changes with preflight")
    return tuple(each.done - each.began for each in times)


def turns(rounds: int, names: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the store of each round and the order of the methods, which does not depend on the store."""
    for number in range(rounds):
        yield number % 2, names if number // 2 % 2 == 0 else names[::-1]
