"""The Kubernetes agent as a program beside the cluster, with a real server in the test process."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from governor import yamltext
from governor.domain.reports import Report, State, overall
from governor.wire.rest import TokenRequest
from testbed.cluster.cluster import Cluster
from testbed.cluster.workloads import Manifest
from testbed.server import Server
from testbed.waiting import until
from tests.integration.server.bed import API_VERSION, ServerBed, profile, running

RUNTIME = "cluster-1"
DECIDED_WITHIN_S = 120.0


class KubernetesAgent(Server):
    """``governor agent --platform kubernetes`` as the cluster's administrator."""

    def __init__(self, directory: Path, cluster: Cluster, state_namespace: str) -> None:
        super().__init__("governor-agent", directory, ["health"])
        self._cluster = cluster
        self._state_namespace = state_namespace
        self.token_file = directory / "join.token"
        self.settings: dict[str, Any] = {}

    def command(self) -> list[str]:
        """Return the command line; the settings are in a file."""
        settings = {
            "platform": "kubernetes",
            "kubeconfig": str(self._cluster.kubeconfig),
            "state-namespace": self._state_namespace,
            "namespaces": [self._state_namespace],
            "join-token-file": str(self.token_file),
            "health-listen": f"127.0.0.1:{self.ports['health']}",
            **self.settings,
        }
        file = self.directory / "agent.yaml"
        file.write_text(yamltext.dump(settings))
        return [sys.executable, "-m", "governor.cli.main", "agent", f"--config={file}"]

    async def is_ready(self) -> bool:
        """Return whether it reports itself ready."""
        try:
            url = f"http://127.0.0.1:{self.ports['health']}/readyz"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


class AgentBed:
    """A server, an agent, and one governed namespace."""

    def __init__(self, server: ServerBed, agent: KubernetesAgent, cluster: Cluster, namespace: str) -> None:
        self.server = server
        self.agent = agent
        self.cluster = cluster
        self.namespace = namespace
        self._sequence = 0

    async def deliver(self, resources: Sequence[Manifest], **policy: object) -> Report:
        """Change the runtime's profile and return the report once it is decided."""
        await self.apply(resources, **policy)
        return await self.decided()

    async def apply(self, resources: Sequence[Manifest], **policy: object) -> None:
        """Change the runtime's profile."""
        await self.server.apply(profile("orders", *resources, apply={"preflight": "off", **policy}))
        self._sequence += 1

    async def decided(self) -> Report:
        """Wait until the newest delivery is verified, failed or unproven."""
        final = (State.VERIFIED, State.FAILED, State.UNPROVEN)

        async def report() -> Report | None:
            found = await self.report()
            return found if found is not None and overall(found) in final else None

        decided = await until(report, within_s=DECIDED_WITHIN_S)
        assert decided is not None
        return decided

    async def report(self) -> Report | None:
        """Return the newest report on the newest delivery."""
        async with self.server.client() as admin:
            view = await admin.runtime(RUNTIME)
        is_newest = view.report is not None and view.report.sequence == self._sequence
        return view.report if is_newest else None


@asynccontextmanager
async def governed(directory: Path, cluster: Cluster, namespace: str, **settings: Any) -> AsyncIterator[AgentBed]:
    """Start a server, join an agent for one namespace, and yield both."""
    spec = {"platform": "kubernetes", "namespaces": [namespace]}
    runtime = {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": {"name": RUNTIME}, "spec": spec}
    async with running(directory / "server") as server:
        await server.apply(runtime)
        agent = KubernetesAgent(directory / "agent", cluster, namespace)
        agent.settings = settings
        async with server.client() as admin:
            token = await admin.create_token(TokenRequest(runtime=RUNTIME))
        agent.directory.mkdir(parents=True)
        agent.token_file.write_text(token.text)
        await agent.start()
        try:
            yield AgentBed(server, agent, cluster, namespace)
        finally:
            await agent.stop()
