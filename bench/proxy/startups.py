"""A pod's start-up through a real kubelet, whose container runtime is reached directly or through a proxy.

Kubelet uses one runtime, so in each round it is restarted for each route; then pods are started one after another. When
a container runs is the runtime's own time of its start; kubelet reports a pod as ready only when it next looks at its
containers, once a second, so that time says less about a proxy.
"""

import asyncio
import random
import statistics
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from time import time
from typing import Any, Final

import msgspec

from bench.proxy.environment import PEER_TIMEOUT_S, is_serving
from bench.proxy.report import Spread
from bench.proxy.requests import workload
from bench.proxy.rounds import shuffled
from bench.proxy.routes import DIRECT, OURS, Route
from governor.kube.client import Client, Request, Transport
from governor.kube.config.kubeconfig import load
from testbed import images
from testbed.cluster import host
from testbed.cluster.cluster import Cluster
from testbed.cluster.workloads import manifest
from testbed.cri.client import CriClient
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.waiting import until
from toolchain.oci import LOCAL

PODS: Final = 8
"""Pods per route and round."""
_PLUGIN_SETS: Final = ("", "go")
_PATH: Final = "/api/v1/namespaces/default/pods"
_TIMEOUT_S: Final = 60.0
_READY: Final = "Ready"


class Startup(msgspec.Struct, frozen=True):
    """How long one pod took from its creation, in seconds."""

    running_s: float
    """Until its container ran, by the runtime's clock."""
    ready_s: float
    """Until the API server reported it as ready."""


Startups = dict[str, list[list[Startup]]]
"""The pods of each round, by route."""


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    uid: str


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _Status = _Status()

    @property
    def is_ready(self) -> bool:
        return any(each.type == _READY and each.status == "True" for each in self.status.conditions)


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Pod


class Node:
    """The cluster as the benchmark uses it: it creates pods and observes them."""

    def __init__(self, api: Client, runtime: CriClient) -> None:
        self._api = api
        self._runtime = runtime
        self._number = 0

    async def start_pod(self) -> Startup:
        """Start a pod, and return its times when it is ready."""
        self._number += 1
        name = f"started-{self._number}"
        body = msgspec.json.encode(_manifest(name))
        began = time()
        pod = msgspec.json.decode(await self._api.send(Request("POST", _PATH, body=body)), type=_Pod)
        async with asyncio.timeout(_TIMEOUT_S):
            await self._ready(name)
        ready = time()
        return Startup(await self._running_since(pod.metadata.uid) - began, ready - began)

    async def _ready(self, name: str) -> None:
        query = {"watch": "true", "fieldSelector": f"metadata.name={name}"}
        async with aclosing(self._api.stream_lines(Request("GET", _PATH, query))) as lines:
            async for line in lines:
                if msgspec.json.decode(line, type=_Event).object.is_ready:
                    return
        raise RuntimeError(f"the API server closed the watch of pod {name}")

    async def _running_since(self, uid: str) -> float:
        """Return when the pod's container was started, in seconds since the epoch."""
        selector = {"label_selector": {"io.kubernetes.pod.uid": uid}}
        (container,) = (await self._runtime.answer("ListContainers", {"filter": selector}))["containers"]
        status = await self._runtime.answer("ContainerStatus", {"container_id": container["id"]})
        return int(status["status"]["started_at"]) / 1e9

    async def delete_pods(self) -> None:
        """Delete all pods, and return when they are gone."""
        await self._api.send(Request("DELETE", _PATH, {"gracePeriodSeconds": "0"}))
        await until(self._is_empty, within_s=_TIMEOUT_S)

    async def _is_empty(self) -> bool:
        found = msgspec.json.decode(await self._api.send(Request("GET", _PATH)))["items"]
        # Kubelet removes stopped sandboxes only once a minute.
        running = {"filter": {"state": {"state": "SANDBOX_READY"}}}
        sandboxes = (await self._runtime.answer("ListPodSandbox", running)).get("items", [])
        return not found and not any(each["metadata"]["namespace"] == "default" for each in sandboxes)


def _manifest(name: str) -> dict[str, Any]:
    command = ["sh", "-c", "sleep infinity"]
    variables = [{"name": each["key"], "value": each["value"].decode()} for each in workload(name)["envs"]]
    container = {"name": "main", "image": f"{LOCAL}/busybox:1", "command": command, "env": variables}
    return manifest("v1", "Pod", name, spec={"terminationGracePeriodSeconds": 0, "containers": [container]})


async def measure(
    directory: Path,
    rounds: int,
    pods: int,
    hooks: Mapping[str, Path],
    peers: Sequence[Route],
    rng: random.Random,
    log: Callable[[str], None],
) -> Startups:
    """Start a cluster and run all rounds."""
    async with real_cluster(directory / "cluster", log) as cluster, AsyncExitStack() as running:
        socket = Path(cluster.facts["socket"])
        log(f"runtime kubelet: {socket}")
        routes = [Route(DIRECT, socket)]
        for plugins in _PLUGIN_SETS:
            proxy = RuntimeProxy(directory / f"kubelet-{plugins or 'none'}", socket)
            proxy.plugins = hooks[plugins]
            await running.enter_async_context(proxy)
            routes.append(Route(OURS, proxy.socket, proxy.pid, plugins))
        for peer in peers:
            client = await running.enter_async_context(CriClient(directory / f"client-{peer.name}", peer.socket))
            await until(partial(is_serving, client), within_s=PEER_TIMEOUT_S)
        runtime = await running.enter_async_context(CriClient(directory / "client-node", socket))
        api = Client(await running.enter_async_context(Transport()), load(cluster.kubeconfig))
        return await run_rounds(cluster, Node(api, runtime), [*routes, *peers], rounds, pods, rng, log)


async def run_rounds(
    cluster: Cluster,
    node: Node,
    routes: Sequence[Route],
    rounds: int,
    pods: int,
    rng: random.Random,
    log: Callable[[str], None],
) -> Startups:
    """Start the pods of all rounds; the first pod of a route warms up."""
    found: Startups = {route.name: [] for route in routes}
    for number in range(rounds):
        log(f"round {number + 1} of {rounds} through kubelet")
        for route in shuffled(routes, rng):
            async with cluster.runtime_at(route.socket):
                await node.start_pod()
                found[route.name].append([await node.start_pod() for _ in range(pods)])
                await node.delete_pods()
    return found


@asynccontextmanager
async def real_cluster(directory: Path, log: Callable[[str], None]) -> AsyncIterator[Cluster]:
    """Start the machine's one cluster, and stop it at the end."""
    cluster = Cluster(directory, "`make bench-proxy`")
    log("starting a cluster")
    await cluster.start(host.programs(), [images.pause().file, images.busybox().file], notify=log)
    try:
        yield cluster
    finally:
        await cluster.stop()


def table(found: Startups) -> Iterator[str]:
    """Yield the table: medians over all pods, and what a proxy adds per round."""
    yield f"| a pod's start through kubelet, ms | {' | '.join(found)} |"
    yield f"|---|{'---|' * len(found)}"
    picks: tuple[tuple[str, Callable[[Startup], float]], ...] = (
        ("until its container runs", lambda each: each.running_s),
        ("until it is ready", lambda each: each.ready_s),
    )
    for title, pick in picks:
        direct = [_median_ms(each, pick) for each in found[DIRECT]]
        cells = [_cell(direct, [_median_ms(each, pick) for each in rounds]) for rounds in found.values()]
        yield f"| {title} | {' | '.join(cells)} |"


def _cell(direct: Sequence[float], taken: Sequence[float]) -> str:
    if direct == taken:
        return f"takes {statistics.median(direct):.0f}"
    return Spread.of([ours - none for none, ours in zip(direct, taken, strict=True)]).shown("+")


def _median_ms(pods: Sequence[Startup], pick: Callable[[Startup], float]) -> float:
    return statistics.median(pick(each) for each in pods) * 1e3
