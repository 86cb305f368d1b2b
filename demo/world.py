"""The programs of the scenario: Redis servers, the governor server, runtimes. Started by steps, stopped together."""

import re
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from demo import documents
from demo.programs import GovernorAgent, GovernorServer, OrderApp, OrderDesk
from governor.client import Client
from governor.wire.rest import ChangeRequest, RevisionProgress, TokenRequest
from testbed.redis import Redis
from testbed.server import Server
from toolchain.errors import TestbedError


class Store(msgspec.Struct):
    """A Redis server and the order desk that uses it."""

    redis: Redis
    desk: OrderDesk


class Runtime(msgspec.Struct):
    """One runtime: the application and the agent that runs its sidecar."""

    name: str
    app: OrderApp
    agent: GovernorAgent

    def sidecar_pid(self) -> int:
        """Return the pid of the application's daprd, found in /proc."""
        port = re.compile(rf"--dapr-http-port[=\0]{self.app.ports['dapr']}\0".encode())
        found = [file.parent.name for file in Path("/proc").glob("[0-9]*/cmdline") if port.search(_bytes_of(file))]
        if len(found) != 1:
            raise TestbedError(f"{self.name} has {len(found)} sidecar processes, expected one")
        return int(found[0])


def _bytes_of(file: Path) -> bytes:
    """Return the content of a file, or nothing if its process has exited."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


class World:
    """Every program that the scenario starts, in one directory."""

    def __init__(self, directory: Path, binaries: dict[str, Path]) -> None:
        self.directory = directory
        self._binaries = binaries
        self._stack = AsyncExitStack()
        self.stores: list[Store] = []
        self.runtimes: list[Runtime] = []
        self.server = GovernorServer(directory / "server")
        self.api: Client
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=10)
        self.http = await self._stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start_store(self) -> Store:
        """Start another Redis server with its order desk."""
        number = len(self.stores) + 1
        redis = Redis(self._binaries["redis"], self.directory / f"redis-{number}")
        await self._start(redis)
        desk = OrderDesk(self.directory / f"desk-{number}", redis)
        await self._start(desk)
        self.stores.append(Store(redis, desk))
        return self.stores[-1]

    async def start_server(self) -> None:
        """Start the governor server and open a client with its admin token."""
        await self._start(self.server)
        self.api = await self._stack.enter_async_context(self.server.client())

    async def start_runtime(self, name: str) -> Runtime:
        """Start the application and the agent, which joins with a one-time token and starts the sidecar."""
        app = OrderApp(self.directory / name)
        await self._start(app)
        agent = GovernorAgent(self.directory / name, self._binaries["daprd"], app.ports["app"], app.ports["dapr"])
        agent.join_with((await self.api.create_token(TokenRequest(runtime=name))).text)
        await self._start(agent)
        self.runtimes.append(Runtime(name, app, agent))
        return self.runtimes[-1]

    async def point(self, runtime: str, store: Store, message: str) -> int:
        """Change centrally where a runtime stores its orders; return the revision."""
        change = await self.api.change(ChangeRequest((documents.orders_of(runtime, store),), message=message))
        if change.revision is None:
            raise TestbedError(f"the change of {runtime} had no effect")
        return change.revision

    async def verified(self, revision: int) -> RevisionProgress:
        """Wait until every runtime has verified the revision."""
        async for progress in self.api.progress(revision):
            latest = progress
        return latest

    async def order(self, runtime: Runtime, route: str) -> str:
        """Read the order from a runtime's application."""
        return await read_order(self.http, f"{runtime.app.url}{route}")

    async def new_order(self, runtime: Runtime, route: str, order_id: str) -> str:
        """Post an order to a runtime's application."""
        return await write_order(self.http, f"{runtime.app.url}{route}", order_id)

    async def _start(self, server: Server) -> None:
        self._stack.push_async_callback(server.stop)
        await server.start()


async def read_order(http: aiohttp.ClientSession, application: str) -> str:
    """Read the order from the application at a URL; an error is returned as its status and text."""
    async with http.get(f"{application}/order") as answer:
        return await _order_id(answer)


async def write_order(http: aiohttp.ClientSession, application: str, order_id: str) -> str:
    """Post an order to the application at a URL, and return the order that it answers, or its error."""
    async with http.post(f"{application}/neworder", json={"data": {"orderId": order_id}}) as answer:
        return await _order_id(answer)


async def _order_id(answer: aiohttp.ClientResponse) -> str:
    if answer.status >= 400:
        return f"{answer.status} {(await answer.text()).strip()}"
    body: Any = await answer.json(content_type=None)
    return str(body.get("orderId")) if isinstance(body, dict) else str(body)
