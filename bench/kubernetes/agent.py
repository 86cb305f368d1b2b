"""The agent of a benchmark: the real program, joined to a real server for one namespace of a cluster."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from demo.world import World
from governor import yamltext
from governor.domain.documents import API_VERSION
from governor.wire.rest import ChangeRequest, TokenRequest
from testbed.server import Server

STATE: Final = "runtime-governor"
"""The namespace of the agent's own state."""
RUNTIME: Final = "cluster-1"
_STILL_S: Final = 0.5


class Agent(Server):
    """``governor agent --platform kubernetes``."""

    def __init__(self, directory: Path, settings: dict[str, Any], token: str) -> None:
        super().__init__("governor-agent", directory, ["health"])
        self._settings = settings
        self._token = token

    def command(self) -> list[str]:
        """Return the command line; the settings are in a file."""
        token = self.directory / "join.token"
        token.write_text(self._token, encoding="ascii")
        settings = {
            **self._settings,
            "join-token-file": str(token),
            "health-listen": f"127.0.0.1:{self.ports['health']}",
        }
        file = self.directory / "agent.yaml"
        file.write_text(yamltext.dump(settings), encoding="utf-8")
        return [sys.executable, "-m", "governor.cli.main", "agent", f"--config={file}"]

    async def is_ready(self) -> bool:
        """Return whether it is ready."""
        try:
            return "governor_" in await self.metrics()
        except aiohttp.ClientError:
            return False

    async def metrics(self) -> str:
        """Return its metrics."""
        url = f"http://127.0.0.1:{self.ports['health']}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()

    async def is_leader(self) -> bool:
        """Return whether it holds the Lease."""
        return re.search(r"^leader_election_master_status\{[^}]*\} 1", await self.metrics(), re.MULTILINE) is not None

    async def api_requests(self) -> float:
        """Return how many requests it has sent to the API server."""
        found = re.findall(r"^rest_client_requests_total\{[^}]*\} (\S+)", await self.metrics(), re.MULTILINE)
        return sum(map(float, found))

    async def settled_requests(self) -> float:
        """Return how many requests it has sent, once it sends none: it writes Events later, 20 in a second."""
        sent = await self.api_requests()
        while True:
            await asyncio.sleep(_STILL_S)
            before, sent = sent, await self.api_requests()
            if sent == before:
                return sent

    @property
    def resident_mib(self) -> float:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * 4096 / 2**20


class Membership(NamedTuple):
    """The settings of an agent for one namespace, and the token with which it joins."""

    settings: dict[str, Any]
    token: str


async def register(world: World, kubeconfig: Path, namespace: str) -> Membership:
    """Start the server, create the runtime and return what its agents need."""
    await world.start_server()
    spec = {"platform": "kubernetes", "namespaces": [namespace]}
    runtime = {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": {"name": RUNTIME}, "spec": spec}
    await world.api.change(ChangeRequest((runtime,)))
    settings = {
        "platform": "kubernetes",
        "kubeconfig": str(kubeconfig),
        "state-namespace": STATE,
        "namespaces": [namespace],
    }
    return Membership(settings, (await world.api.create_token(TokenRequest(runtime=RUNTIME))).text)


@asynccontextmanager
async def joined(
    directory: Path, world: World, kubeconfig: Path, namespace: str, settings: Mapping[str, Any]
) -> AsyncIterator[Agent]:
    """Start the server, join an agent that governs one namespace, and yield the agent; the settings are added."""
    member = await register(world, kubeconfig, namespace)
    async with Agent(directory, {**member.settings, **settings}, member.token) as agent:
        yield agent


def profile(*resources: dict[str, Any], preflight: str = "off") -> dict[str, Any]:
    """Return the document that delivers some resources."""
    spec = {"selector": {}, "apply": {"preflight": preflight}, "resources": list(resources)}
    return {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": "orders"}, "spec": spec}
