"""The agent program against a real server: joining, watching, verifying, reporting, and running without the server."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp

from governor import yamltext
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.domain.conditions import Status
from governor.domain.reports import Report, State, overall
from governor.wire.rest import RuntimeView, TokenRequest
from testbed.pytest_plugin import StartRedis, StartServer
from testbed.server import Server
from testbed.waiting import until
from tests.integration.agent.bed import component
from tests.integration.server.bed import ServerBed, profile, running, runtime

DECIDED_WITHIN_S = 200.0
"""Enough for a preflight, a proof and, on a busy machine, reconnect backoff."""
CANARY = "canary-6f1d"


class AgentProgram(Server):
    """``governor agent`` with one sidecar without an application."""

    def __init__(self, directory: Path, daprd: Path) -> None:
        super().__init__("governor-agent", directory, ["health", "http"])
        self._daprd = daprd
        self.token_file = directory / "join.token"
        self.state_dir = directory / "state"
        self.stops_sidecars = True
        self.resync_interval = 300.0

    async def join(self, bed: ServerBed, name: str) -> None:
        async with bed.client() as admin:
            created = await admin.create_token(TokenRequest(runtime=name))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.token_file.write_text(created.text)

    def settings(self) -> dict[str, Any]:
        """Return the content of the settings file."""
        return {
            "state-dir": str(self.state_dir),
            "join-token-file": str(self.token_file),
            "daprd": str(self._daprd),
            "health-listen": f"127.0.0.1:{self.ports['health']}",
            "sidecars": [{"app-id": "app", "http-port": self.ports["http"]}],
            "stop-sidecars-on-exit": self.stops_sidecars,
            "resync-interval": self.resync_interval,
        }

    def command(self) -> list[str]:
        file = self.directory / "agent.yaml"
        file.write_text(yamltext.dump(self.settings()))
        return [sys.executable, "-m", "governor.cli.main", "agent", f"--config={file}"]

    async def is_ready(self) -> bool:
        return await self.status(self.ports["health"], "/readyz") == 200

    async def has_joined(self) -> bool:
        return await AgentState(FileBlobs(self.state_dir)).membership() is not None

    async def status(self, port: int, path: str) -> int:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0


def store(name: str, note: str) -> dict[str, Any]:
    return profile("orders", component(name, "state.in-memory", note=note))


async def verified(bed: ServerBed, sequence: int) -> RuntimeView:
    async def verified_view() -> RuntimeView | None:
        async with bed.client() as admin:
            view = await admin.runtime("r1")
        done = view.report is not None and view.report.sequence == sequence and is_verified(view.report)
        return view if done else None

    view = await until(verified_view, within_s=DECIDED_WITHIN_S)
    assert view is not None
    return view


def is_verified(report: Report) -> bool:
    return overall(report) is State.VERIFIED


async def test_an_agent_joins_with_a_token_and_verifies_each_delivery(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), store("orders", "one"))
        agent = AgentProgram(tmp_path / "agent", daprd_binary)
        await agent.join(bed, "r1")
        await start_server(agent)

        first = await verified(bed, 1)
        await bed.apply(store("orders", "two"))
        second = await verified(bed, 2)

        assert [condition.status for condition in second.conditions] == [Status.TRUE, Status.TRUE]
        assert first.report is not None
        assert second.report is not None
        assert (first.report.session, first.report.n) < (second.report.session, second.report.n)
        assert [str(each.workload) for each in second.report.workloads] == ["default/Sidecar/app"]
        sources = [item.source.split()[0] for item in second.report.resources[0].all_evidence]
        assert sources == ["agent", "preflight", "file", "sidecar"]


async def test_a_runtime_works_without_its_server_and_catches_up_later(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    agent = AgentProgram(tmp_path / "agent", daprd_binary)
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), store("orders", "one"))
        await agent.join(bed, "r1")
        await start_server(agent)
        await verified(bed, 1)
        await agent.stop()

    await agent.start()

    assert await agent.status(agent.ports["http"], "/v1.0/state/orders/key") == 204
    async with running(tmp_path / "server", port=bed.address.port) as bed:
        await bed.apply(store("orders", "two"))
        await verified(bed, 2)


async def test_delivered_secrets_are_in_no_log_and_only_in_private_files(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    secret = component("orders", "state.redis", redisHost=redis.address, redisPassword=CANARY)
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), profile("orders", secret, apply={"verifyWindowSeconds": 60}))
        agent = AgentProgram(tmp_path / "agent", daprd_binary)
        await agent.join(bed, "r1")
        await start_server(agent)

        async def failed() -> Report | None:
            async with bed.client() as admin:
                report = (await admin.runtime("r1")).report
            return report if report is not None and overall(report) is State.FAILED else None

        report = await until(failed, within_s=DECIDED_WITHIN_S)
        await agent.stop()
        assert "WRONGPASS" in repr(report)
        assert CANARY not in repr(report)
        holders = [path for path in (tmp_path / "agent").rglob("*") if path.is_file() and CANARY in path.read_text()]
        assert {path.name for path in holders} == {"newest.json"}
        assert {path.stat().st_mode & 0o777 for path in holders} == {0o600}


async def test_an_agent_with_a_used_join_token_or_state_directory_exits_with_the_reason(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    async with running(tmp_path / "server") as bed:
        # Without a delivery the agent would wait for one before it starts its sidecar.
        await bed.apply(runtime("r1"), store("orders", "one"))
        first = AgentProgram(tmp_path / "first", daprd_binary)
        await first.join(bed, "r1")
        await start_server(first)
        await until(first.has_joined)
        second = AgentProgram(tmp_path / "second", daprd_binary)
        second.directory.mkdir()
        second.token_file.write_text(first.token_file.read_text())
        second.ports = {"health": 0, "http": 0}

        token_used, directory_used = await asyncio.gather(run_to_end(second), run_to_end(first))

        assert token_used[0] == 1
        assert "join token" in token_used[1]
        assert directory_used[0] != 0
        assert "another agent uses the state directory" in directory_used[1]


async def test_an_agent_of_another_platform_exits_with_the_reason_and_can_join_later(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    async with running(tmp_path / "server") as bed:
        await bed.apply({**runtime("r1"), "spec": {"platform": "kubernetes"}}, store("orders", "one"))
        agent = AgentProgram(tmp_path / "agent", daprd_binary)
        await agent.join(bed, "r1")
        agent.ports = {"health": 0, "http": 0}
        code, output = await run_to_end(agent)
        assert code == 1
        assert "the platform of runtime 'r1' is 'kubernetes', that of this agent is 'local'" in output
        assert not await agent.has_joined()

        await bed.apply(runtime("r1"))
        again = AgentProgram(tmp_path / "agent", daprd_binary)
        await start_server(again)
        await until(again.has_joined)


async def run_to_end(agent: AgentProgram) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *agent.command(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return process.returncode, output.decode()
