"""The measured server: a process with a data directory in which all runtimes are enrolled, and its documents."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from yarl import URL

from bench.reconciler.processes import cpu_time, resident_mib
from bench.server.swarm import Setup, name_of
from demo.programs import GovernorServer
from governor import yamltext
from governor.client import Client
from governor.server.store import schema_version
from governor.server.store.identities import RuntimeKey, put_runtime_key
from governor.server.store.sqlite import writer_engine
from governor.server.store.write_ahead_log import mark_commit
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.rest import PREFIX, ChangeRequest

API_VERSION: Final = "runtime-governor.dev/v1alpha1"
REGIONS: Final = 10
_RUNTIMES_PER_CHANGE: Final = 2_500


def runtime(number: int) -> dict[str, Any]:
    """Return the document of a runtime, in one of ten regions."""
    metadata = {"name": name_of(number), "labels": {"region": f"region-{number % REGIONS}"}}
    return {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": metadata, "spec": {"platform": "local"}}


def profile(name: str, selector: dict[str, Any], value: str) -> dict[str, Any]:
    """Return a profile with one component that has this value."""
    items = [{"name": "redisHost", "value": "redis:6379"}, {"name": "keyPrefix", "value": value}]
    component = {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": f"store-{name}"},
        "spec": {"type": "state.redis", "version": "v1", "metadata": items},
    }
    spec = {"selector": selector, "resources": [component]}
    return {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": name}, "spec": spec}


class BenchServer(GovernorServer):
    """``governor server``, with a certificate of its own CA if TLS is measured."""

    def __init__(self, directory: Path, *, tls: bool) -> None:
        super().__init__(directory)
        self._tls = tls

    @property
    def url(self) -> str:
        """The URL of its API."""
        return super().url.replace("http:", "https:") if self._tls else super().url

    def client(self) -> Client:
        """Return a client with the admin token."""
        token = Secret(self.admin_token_file.read_text().strip())
        authority = self.data_dir / "authority.pem" if self._tls else None
        return Client(self.url, lambda: token, ca_file=authority, timeout_s=300)

    def command(self) -> list[str]:
        """Return the command line."""
        if not self._tls:
            return super().command()
        config = self.directory / "server.yaml"
        config.write_text(yamltext.dump({"tls-names": ["127.0.0.1"]}))
        return [*super().command(), f"--config={config}"]


class Subject:
    """The running server with shortcuts for measurements."""

    def __init__(self, server: BenchServer, setup: Setup, client: Client) -> None:
        self.server = server
        self.setup = setup
        self.client = client

    @property
    def resident_mib(self) -> float:
        """Return its memory."""
        return resident_mib([self.server.pid])

    @property
    def cpu_s(self) -> float:
        """Return its CPU time so far."""
        return cpu_time([self.server.pid]).total_s

    async def apply(self, *documents: dict[str, Any]) -> tuple[int, float, float]:
        """Apply documents; return the revision, when the request was sent and when it was answered."""
        began_s = time.monotonic()
        change = await self.client.change(ChangeRequest(documents=documents))
        return change.revision or 0, began_s, time.monotonic()

    async def get(self, path: str) -> float:
        """Request a path as the administrator; return the seconds until the whole response was read."""
        token = self.server.admin_token_file.read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        began_s = time.monotonic()
        url = URL(f"{self.server.url}{PREFIX}{path}", encoded=True)
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url, ssl=False) as response:
            await response.read()
            if response.status != 200:
                raise RuntimeError(f"{path}: {response.status}")
        return time.monotonic() - began_s

    async def restart(self) -> float:
        """Kill the server and start it again; return when it was killed."""
        await self.server.kill()
        killed_s = time.monotonic()
        await self.server.start()
        return killed_s


@asynccontextmanager
async def subject(directory: Path, agents: int, *, tls: bool = False) -> AsyncIterator[Subject]:
    """Run a server with this many enrolled runtimes."""
    server = BenchServer(directory, tls=tls)
    key = Ed25519PrivateKey.generate()
    server.data_dir.mkdir(parents=True, mode=0o700)
    await asyncio.to_thread(_enrol_all, server.data_dir / "governor.db", agents, key)
    async with server, server.client() as client:
        for start in range(0, agents, _RUNTIMES_PER_CHANGE):
            numbers = range(start, min(agents, start + _RUNTIMES_PER_CHANGE))
            await client.change(ChangeRequest(documents=tuple(map(runtime, numbers))))
        setup = Setup("127.0.0.1", server.ports["api"], tls, agents, key.private_bytes_raw())
        yield Subject(server, setup, client)


def _enrol_all(database: Path, agents: int, key: Ed25519PrivateKey) -> None:
    """Store one key for all runtimes: enrolling is not what is measured."""
    schema_version.prepare(database)
    public = key.public_key()
    text, name = credentials.encode_public_key(public), credentials.key_id(public)
    engine = writer_engine(database)
    with engine.begin() as connection:
        for number in range(agents):
            put_runtime_key(connection, RuntimeKey(name_of(number), name, text, datetime.now(UTC)))
        mark_commit(connection)
    engine.dispose()
