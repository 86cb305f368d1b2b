"""A real server in the test process: HTTP on a free loopback port, SQLite in the test's directory."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.client import Client, WatchSession
from governor.domain.bundles import Delivery, DeliveryPosition, refs
from governor.domain.changes import Change
from governor.domain.reports import Evidence, Report, ResourceReport, State
from governor.process.address import Address, bound_address, listen
from governor.process.clock import Clock, SystemClock
from governor.process.telemetry.metrics import program_registry
from governor.server.data_directory import ADMIN_TOKEN
from governor.server.main import api_server, heartbeat, open_services
from governor.server.services import DEFAULT_TIMING, Services, Timing
from governor.server.settings import Settings
from governor.server.store.bundles import pending_members
from governor.server.store.identities import RuntimeKey, put_runtime_key
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.deliveries import open_delivery
from governor.wire.formats import DELIVERY_FORMATS, REPORT_FORMATS
from governor.wire.rest import PREFIX, ChangeRequest, EnrolRequest, TokenRequest
from testbed.waiting import until

API_VERSION = "runtime-governor.dev/v1alpha1"
EVERYTHING: dict[str, Any] = {}
SMALL_BUFFER = 16 * 1024
"""Size of a socket's buffer, so that a stalled connection is noticed soon."""


def runtime(name: str, **labels: str) -> dict[str, Any]:
    """Return a Runtime document."""
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": metadata, "spec": {"platform": "local"}}


def profile(name: str, *resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a Profile document that selects all runtimes unless ``selector`` is given."""
    whole = {"selector": EVERYTHING, "resources": list(resources), **spec}
    return {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": name}, "spec": whole}


def component(name: str, **metadata: str) -> dict[str, Any]:
    """Return a Redis state store component."""
    items = [{"name": key, "value": value} for key, value in metadata.items()]
    spec = {"type": "state.redis", "version": "v1", "metadata": items}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec}


class ServerBed:
    """A running server with shortcuts for tests."""

    def __init__(self, services: Services, address: Address, directory: Path) -> None:
        self.services = services
        self.address = address
        self.directory = directory
        self.url = f"http://{address}"

    @property
    def data_dir(self) -> Path:
        """The data directory."""
        return self.directory

    @property
    def admin_token_file(self) -> Path:
        """The file with the admin token."""
        return self.directory / ADMIN_TOKEN

    @property
    def admin_token(self) -> Secret:
        """Return the token created at the first start."""
        return Secret(self.admin_token_file.read_text().strip())

    def client(self, credential: Secret | Callable[[], Secret] | None = None) -> Client:
        """Return a client with the given credential, by default the admin token."""
        given = self.admin_token if credential is None else credential
        return Client(self.url, given if callable(given) else lambda: given)

    async def apply(self, *documents: dict[str, Any], **options: Any) -> Change:
        """Submit a change as the administrator, and wait until its deliveries are issued."""
        async with self.client() as admin:
            change = await admin.change(ChangeRequest(documents=documents, **options))
        await self.issued()
        return change

    async def issued(self) -> None:
        """Wait until the deliveries of all accepted changes are issued."""

        async def has_no_draft() -> bool:
            return not await self.services.store.read(pending_members)

        await until(has_no_draft)

    async def enrol(self, name: str) -> "Agent":
        """Enrol an agent for a runtime."""
        async with self.client() as admin:
            created = await admin.create_token(TokenRequest(runtime=name))
        join = credentials.read_join_token(Secret(created.text))
        agent = Agent(self, name)
        async with Client(join.server, None) as anonymous:
            public = credentials.encode_public_key(agent.key.public_key())
            enrolment = await anonymous.enrol(EnrolRequest(name, join.secret, public))
        agent.delivery_key = credentials.read_public_key(enrolment.delivery_key)
        return agent

    async def enrol_all(self, names: Sequence[str]) -> Ed25519PrivateKey:
        """Store one key for many runtimes, and return it; enrolling each takes long."""
        key = Ed25519PrivateKey.generate()
        public = key.public_key()
        text, key_id, now = credentials.encode_public_key(public), credentials.key_id(public), datetime.now(UTC)

        def put(connection: sa.Connection) -> None:
            for name in names:
                put_runtime_key(connection, RuntimeKey(name, key_id, text, now))

        await self.services.store.write(put)
        return key

    async def watch_raw(
        self, name: str, key: Ed25519PrivateKey, held: DeliveryPosition | None = None
    ) -> asyncio.StreamWriter:
        """Open a watch on a connection from which nothing is read, with a small buffer of the kernel."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (self.address.host, self.address.port))
        _, writer = await asyncio.open_connection(sock=connection, limit=1)
        token = credentials.mint(name, key, datetime.now(UTC)).reveal()
        writer.write(
            f"GET {PREFIX}/runtimes/{name}/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"{DELIVERY_FORMATS}: 1, 2, 3\r\n{REPORT_FORMATS}: 1, 2\r\n"
            f"Last-Event-ID: {held or DeliveryPosition()}\r\n\r\n".encode()
        )
        return writer


class Agent:
    """A runtime's agent, driven by the test."""

    def __init__(self, bed: ServerBed, name: str) -> None:
        self.bed = bed
        self.name = name
        self.key = Ed25519PrivateKey.generate()
        self.delivery_key = self.key.public_key()
        self.session = 0

    def credential(self) -> Secret:
        """Return a new token signed by the agent's key."""
        return credentials.mint(self.name, self.key, datetime.now(UTC))

    def client(self) -> Client:
        """Return a client with this runtime's credential."""
        return self.bed.client(self.credential)

    @asynccontextmanager
    async def watching(
        self, after: int = 0, held: DeliveryPosition | None = None
    ) -> AsyncIterator[Callable[[], "asyncio.Task[Delivery]"]]:
        """Open a watch; each call of the result returns the next delivery, verified and decoded."""
        position = held or DeliveryPosition("", after)
        async with (
            self.client() as client,
            aclosing(client.watch(self.name, position, on_open=self._watch_opened)) as watch,
        ):

            async def take() -> Delivery:
                async with asyncio.timeout(10):
                    return open_delivery(await anext(watch), self.delivery_key)

            yield lambda: asyncio.ensure_future(take())

    async def newest(self, after: int = 0, held: DeliveryPosition | None = None) -> Delivery:
        """Return the newest delivery, read from a new watch."""
        async with self.watching(after, held) as take:
            return await take()

    async def open_session(self, held: DeliveryPosition | None = None) -> None:
        """Open a watch and close it as soon as the server has accepted it."""
        position = held or DeliveryPosition()
        async with self.client() as client:
            accepted = asyncio.Event()

            def opened(session: WatchSession) -> None:
                self._watch_opened(session)
                accepted.set()

            async with aclosing(client.watch(self.name, position, on_open=opened)) as watch:
                taking = asyncio.ensure_future(anext(watch))
                async with asyncio.timeout(10):
                    await accepted.wait()
                taking.cancel()
                await asyncio.wait({taking})

    def _watch_opened(self, session: WatchSession) -> None:
        self.session = session.number

    async def report(self, delivery: Delivery, state: State, n: int = 1, **changes: Any) -> Report:
        """Report one state for all resources of a delivery, in the session of the last watch."""
        report = report_on(delivery, state, n, **{"session": self.session, **changes})
        async with self.client() as client:
            await client.report(report)
        return report


def report_on(delivery: Delivery, state: State, n: int = 1, **changes: Any) -> Report:
    """Return a report with the same state for all resources of a delivery, put or removed."""
    now = datetime.now(UTC)
    evidence = (Evidence("test", now, "seen by the test"),)
    resources = (*refs(delivery.resources), *delivery.removals)
    findings = (ResourceReport(state=state, resource=ref, evidence=evidence) for ref in resources)
    report = Report(
        runtime=delivery.runtime,
        sequence=delivery.sequence,
        attempt=delivery.attempt,
        digest=delivery.digest,
        session=0,
        n=n,
        time=now,
        agent="test",
        resources=tuple(findings),
        workloads=(),
    )
    return msgspec.structs.replace(report, **changes)


@asynccontextmanager
async def running(
    directory: Path,
    *,
    port: int = 0,
    timing: Timing = DEFAULT_TIMING,
    clock: Clock | None = None,
    small_buffers: bool = False,
    **settings: Any,
) -> AsyncIterator[ServerBed]:
    """Run a server within the context, on a free port or on that of an earlier one."""
    chosen = Settings(listen=Address("127.0.0.1", port), data_dir=directory, **settings)
    registry = program_registry("server", "test")
    with listen(chosen.listen) as listener:
        if small_buffers:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        address = bound_address(listener)
        async with open_services(chosen, address, clock or SystemClock(), registry, timing) as services:
            components = (api_server(services, listener), services.issuer, heartbeat(services))
            running = {asyncio.create_task(each.run()) for each in components}
            try:
                yield ServerBed(services, address, directory)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.wait(running)
