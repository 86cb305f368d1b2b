"""The agent program behind a faulty network: sidecars are unaffected, and the server eventually gets every report."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from demo.programs import GovernorServer
from governor.agent.platforms.local.daprd import OWNER_VARIABLE
from governor.client import Client
from governor.domain.reports import Report, State, overall
from governor.process.child import detached
from governor.values.secret import Secret
from governor.wire.credentials import JoinToken, read_join_token
from governor.wire.rest import ChangeRequest, TokenRequest
from testbed.proxies.faults import FaultProxy
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.agent.test_server import DECIDED_WITHIN_S, AgentProgram, store, verified
from tests.integration.server.bed import runtime


class Bed:
    """A server, a proxy in front of it, and an agent behind the proxy that has verified delivery 1."""

    def __init__(self, server: GovernorServer, proxy: FaultProxy, agent: AgentProgram, admin: Client) -> None:
        self.server = server
        self.proxy = proxy
        self.agent = agent
        self.admin = admin

    async def change(self, note: str) -> None:
        await self.admin.change(ChangeRequest((store("orders", note),)))

    def note_in_use(self) -> str:
        """Return the component file, which shows the change that the sidecar uses once it is verified."""
        return (self.agent.state_dir / "resources" / "component.orders.yaml").read_text()

    async def report(self) -> Report | None:
        return (await self.admin.runtime("r1")).report

    @property
    def sidecar(self) -> int:
        [pid] = detached.pids_with_variable(OWNER_VARIABLE, str(self.agent.state_dir))
        return pid


@asynccontextmanager
async def started(tmp_path: Path, daprd: Path, start_server: StartServer) -> AsyncIterator[Bed]:
    server = await start_server(GovernorServer(tmp_path / "server"))
    port = urlsplit(server.url).port
    assert port is not None
    async with FaultProxy(port) as proxy, server.client() as admin:
        await admin.change(ChangeRequest((runtime("r1"), store("orders", "one"))))
        created = await admin.create_token(TokenRequest(runtime="r1"))
        token = read_join_token(Secret(created.text))
        agent = AgentProgram(tmp_path / "agent", daprd)
        agent.directory.mkdir()
        through = JoinToken(proxy.url, token.runtime, token.secret, token.ca)
        agent.token_file.write_text(through.encode().reveal())
        await start_server(agent)
        await verified(server, 1)
        yield Bed(server, proxy, agent, admin)


async def test_a_broken_watch_is_reconnected_without_missing_a_delivery(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    async with started(tmp_path, daprd_binary, start_server) as bed:
        bed.proxy.unavailable = True
        bed.proxy.cut()
        await bed.change("two")
        await bed.change("three")
        bed.proxy.unavailable = False

        await verified(bed.server, 3)
        assert "three" in bed.note_in_use()


async def test_duplicate_and_reordered_deliveries_are_applied_once_and_in_order(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    async with started(tmp_path, daprd_binary, start_server) as bed:
        pid = bed.sidecar
        bed.proxy.duplicating = bed.proxy.swapping = True
        await bed.change("two")

        async def is_held() -> bool:
            return bed.proxy.holding

        await until(is_held)
        await bed.change("three")

        await verified(bed.server, 3)
        assert "three" in bed.note_in_use()
        assert bed.sidecar == pid
        sent = [event for event in bed.proxy.events if b"three" in event or b"two" in event]
        assert len(sent) == 4
        assert b"three" in sent[0]


async def test_a_sidecar_restart_during_a_stalled_connection_is_reported_later(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    async with started(tmp_path, daprd_binary, start_server) as bed:
        before = await bed.report()
        assert before is not None
        pid = bed.sidecar
        bed.proxy.stall()
        os.kill(pid, signal.SIGKILL)

        async def is_another() -> bool:
            return pid not in detached.pids_with_variable(OWNER_VARIABLE, str(bed.agent.state_dir)) and bool(
                list(detached.pids_with_variable(OWNER_VARIABLE, str(bed.agent.state_dir)))
            )

        await until(is_another, within_s=DECIDED_WITHIN_S)
        assert await bed.report() == before
        bed.proxy.resume()

        async def has_news() -> bool:
            now = await bed.report()
            return now is not None and now.n > before.n and overall(now) is State.VERIFIED

        await until(has_news, within_s=DECIDED_WITHIN_S)


async def test_a_sidecar_restart_while_the_server_is_down_is_reported_later(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    async with started(tmp_path, daprd_binary, start_server) as bed:
        before = await bed.report()
        assert before is not None
        await bed.server.stop()
        os.kill(bed.sidecar, signal.SIGKILL)

        async def serves() -> bool:
            return await bed.agent.status(bed.agent.ports["http"], "/v1.0/state/orders/key") == 204

        await until(serves, within_s=DECIDED_WITHIN_S)
        await bed.server.start()

        async def has_news() -> bool:
            now = await bed.report()
            return now is not None and now.n > before.n and overall(now) is State.VERIFIED

        await until(has_news, within_s=DECIDED_WITHIN_S)
        await bed.change("two")
        await verified(bed.server, 2)
