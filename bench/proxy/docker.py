"""dockerd reached directly and through our proxy in Docker mode: a container's run, a command in it, a long list.

The client keeps its connection, as Docker's libraries do. All containers are Kubernetes' own, so that the policy of the
route that has one concerns each of them.
"""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import aiohttp
import msgspec

from bench.concurrency import run_bounded
from bench.proxy.operations import Latency, Operation, Prepare, Repeat
from bench.proxy.plugins import write_policy
from bench.proxy.processes import Memory
from bench.proxy.report import (
    DOCKER_RESIDENT_LIMIT_MIB,
    added,
    memory_table,
    processor,
    ratios,
    slowest,
    targets,
)
from bench.proxy.requests import LISTED_CONTAINERS
from bench.proxy.rounds import Samples, run_rounds
from bench.proxy.routes import DIRECT, OURS, POLICY, Route
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.docker.dockerd import Dockerd

CONCURRENCY: Final = 8
POLICY_SHARES: Final = 256
"""What the policy sets; see ``write_policy``."""
_SHARES: Final = 512
_OK: Final = 300
_POD: Final = {
    "io.kubernetes.pod.name": "bench",
    "io.kubernetes.pod.namespace": "default",
    "io.kubernetes.pod.uid": "bench",
}


class Sizes(msgspec.Struct, frozen=True):
    """Repetitions of each operation in a round."""

    runs: int = 8
    execs: int = 16
    lists: int = 60


QUICK: Final = Sizes(1, 2, 4)


class DockerClient:
    """A client of one route."""

    def __init__(self, session: aiohttp.ClientSession, image: str, sandbox: str) -> None:
        self._session = session
        self._image = image
        self._sandbox = sandbox

    async def call(self, method: str, path: str, body: Any = None) -> bytes:
        """Send a request and return the body of the response; raise if it fails."""
        async with self._session.request(method, f"http://docker/v1.41{path}", json=body) as response:
            answer = await response.read()
        if response.status >= _OK:
            raise RuntimeError(f"{method} {path} ended with {response.status}: {answer.decode()}")
        return answer

    async def create(self, *script: str) -> str:
        """Create one of Kubernetes' containers, and return its id."""
        own = {"io.kubernetes.container.name": "app", "io.kubernetes.sandbox.id": self._sandbox}
        labels = {**_POD, **own, "io.kubernetes.docker.type": "container"}
        variables = [f"SERVICE_{number}_PORT=tcp://10.96.0.{number}:80" for number in range(20)]
        host = {"CpuShares": _SHARES, "Memory": 2**26}
        body = {"Image": self._image, "Cmd": ["-c", *script], "Labels": labels, "Env": variables, "HostConfig": host}
        return str(json.loads(await self.call("POST", "/containers/create", body))["Id"])

    async def run(self, _: int) -> None:
        """Run a container to its end and remove it."""
        created = await self.create("exit 0")
        await self.call("POST", f"/containers/{created}/start")
        await self.call("POST", f"/containers/{created}/wait")
        await self.call("DELETE", f"/containers/{created}")

    async def execute(self, container: str, _: int) -> None:
        """Run a command in a container and read its output from the hijacked connection."""
        command = {"AttachStdout": True, "Cmd": ["echo", "done"]}
        created = json.loads(await self.call("POST", f"/containers/{container}/exec", command))["Id"]
        output = await self.call("POST", f"/exec/{created}/start", {"Detach": False})
        if not output.endswith(b"done\n"):
            raise RuntimeError(f"the command printed {output!r}")

    async def list(self, _: int) -> None:
        """List all containers."""
        await self.call("GET", "/containers/json?all=1")


class DockerEnvironment(msgspec.Struct, frozen=True):
    """A dockerd, its routes and their clients."""

    clients: Mapping[Route, DockerClient]
    idle: Mapping[Route, Memory]
    container: str
    """A running container."""

    def memory(self) -> dict[str, tuple[Memory, Memory]]:
        """Return each proxy's memory at first and now."""
        return {route.name: (idle, Memory.of(route.pid)) for route, idle in self.idle.items() if route.pid is not None}

    async def check_policies(self) -> None:
        """Raise unless the policy is applied where there is one, and only there."""
        for route, client in self.clients.items():
            created = await client.create("exit 0")
            inspected = json.loads(await client.call("GET", f"/containers/{created}/json"))
            await client.call("DELETE", f"/containers/{created}")
            found, expected = inspected["HostConfig"]["CpuShares"], POLICY_SHARES if route.plugins else _SHARES
            if found != expected:
                raise RuntimeError(f"a container has {found} shares on the route {route.name}, expected {expected}")

    def operations(self, sizes: Sizes) -> Iterator[Operation[DockerClient]]:
        """Yield the operations."""
        container = self.container
        calls: dict[str, tuple[Callable[[DockerClient], Callable[[int], Awaitable[None]]], int]] = {
            "run": (lambda client: client.run, sizes.runs),
            "exec": (lambda client: partial(client.execute, container), sizes.execs),
            f"list of {LISTED_CONTAINERS}": (lambda client: client.list, sizes.lists),
        }
        for title, (call, count) in calls.items():
            yield Operation(title, _prepared(call), 1, count)
            yield Operation(title, _prepared(call), CONCURRENCY, max(count, CONCURRENCY))


def _prepared(call: Callable[[DockerClient], Callable[[int], Awaitable[None]]]) -> Prepare[DockerClient]:
    @asynccontextmanager
    async def prepare(client: DockerClient) -> AsyncIterator[Repeat]:
        yield partial(_repeat, call(client))

    return prepare


async def _repeat(call: Callable[[int], Awaitable[None]], count: int, at_once: int) -> Latency:
    took: list[float] = []

    async def timed(number: int) -> None:
        began = perf_counter()
        await call(number)
        took.append(perf_counter() - began)

    await run_bounded(timed, range(count), at_once)
    took.sort()
    return Latency(took[len(took) // 2], took[-1 - len(took) // 100])


@asynccontextmanager
async def environment(directory: Path) -> AsyncIterator[DockerEnvironment]:
    """Start dockerd with the listed containers, our proxy with and without a policy, and a client of each route."""
    async with AsyncExitStack() as running:
        dockerd = await running.enter_async_context(Dockerd(directory / "dockerd"))
        routes = [Route(DIRECT, dockerd.socket)]
        for plugins in ("", POLICY):
            options = "--backend-runtime-mode=Docker"
            proxy = RuntimeProxy(directory / f"docker-{plugins or 'none'}", dockerd.socket, options)
            if plugins:
                write_policy(proxy.policies)
            await running.enter_async_context(proxy)
            routes.append(Route(OURS, proxy.socket, proxy.pid, plugins, "docker"))
        body = {"Image": dockerd.image, "Labels": {**_POD, "io.kubernetes.docker.type": "podsandbox"}}
        sandbox = (await dockerd.engine("POST", "/containers/create", body))["Id"]
        clients = {}
        for route in routes:
            connector = aiohttp.UnixConnector(str(route.socket), limit=0)
            session = await running.enter_async_context(aiohttp.ClientSession(connector=connector))
            clients[route] = DockerClient(session, dockerd.image, sandbox)
        container = await _fill(clients[routes[0]])
        idle = {route: Memory.of(route.pid) for route in routes if route.pid is not None}
        yield DockerEnvironment(clients, idle, container)


async def _fill(direct: DockerClient) -> str:
    """Create what is listed beside the sandbox; return the one that runs."""
    created = [await direct.create("exec sleep 1000000") for _ in range(LISTED_CONTAINERS - 1)]
    await direct.call("POST", f"/containers/{created[0]}/start")
    return created[0]


async def measure(
    directory: Path, rounds: int, sizes: Sizes, rng: random.Random, log: Callable[[str], None]
) -> tuple[Samples, dict[str, tuple[Memory, Memory]]]:
    """Run all rounds, and return their samples and the proxies' memory."""
    log("starting dockerd")
    async with environment(directory) as prepared:
        await prepared.check_policies()
        samples = await run_rounds(rounds, list(prepared.operations(sizes)), prepared.clients, rng, log)
        return samples, prepared.memory()


def tables(samples: Samples, memory: Mapping[str, tuple[Memory, Memory]]) -> Iterator[Iterator[str]]:
    """Yield all tables."""
    yield from (table(samples) for table in (added, ratios, slowest, processor))
    yield memory_table(memory)
    yield targets(samples, memory, DOCKER_RESIDENT_LIMIT_MIB)
