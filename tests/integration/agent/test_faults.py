"""An agent behind a faulty network: its sidecar is unaffected, and the server eventually gets every report."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from governor.agent import connection
from governor.agent.main import open_agent
from governor.agent.platforms.local.home import LocalHome
from governor.agent.platforms.local.sidecars.probe import Process
from governor.agent.platforms.local.sidecars.sidecar import Sidecar
from governor.agent.settings import Settings, SidecarSettings
from governor.domain.reports import Report
from governor.process.clock import SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.telemetry.instruments import Registry
from governor.values.secret import Secret
from governor.wire.credentials import JoinToken, read_join_token
from governor.wire.rest import TokenRequest
from testbed.proxies.faults import FaultProxy
from testbed.waiting import until
from tests.integration.agent.bed import component
from tests.integration.agent.test_server import is_verified, verified
from tests.integration.server.bed import ServerBed, profile, running, runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


def store(note: str) -> dict[str, Any]:
    return profile("orders", component("orders", "state.in-memory", note=note), apply={"preflight": "off"})


class Bed:
    """A server, a proxy in front of it, and an agent behind the proxy; one for this file."""

    def __init__(self, directory: Path, daprd: Path) -> None:
        self._server_dir = directory / "server"
        self._state_dir = directory / "agent"
        self._daprd = daprd
        self._server_stack = AsyncExitStack()
        self.server: ServerBed
        self.proxy: FaultProxy
        self.sidecar: Sidecar

    async def start_server(self, port: int = 0) -> None:
        self.server = await self._server_stack.enter_async_context(running(self._server_dir, port=port))

    async def stop_server(self) -> None:
        await self._server_stack.aclose()

    async def start(self, stack: AsyncExitStack) -> None:
        """Start everything; the agent has verified delivery 1 afterwards."""
        stack.push_async_callback(self.stop_server)
        await self.start_server()
        self.proxy = await stack.enter_async_context(FaultProxy(self.server.address.port))
        await self.server.apply(runtime("r1"), store("first"))
        settings = Settings(
            state_dir=self._state_dir,
            daprd=self._daprd,
            sidecars=(SidecarSettings(app_id="app"),),
            join_token=await self._join_token(),
            stop_sidecars_on_exit=True,
        )
        agent = await stack.enter_async_context(open_agent(settings, SystemClock(), Registry()))
        assert isinstance(agent.home, LocalHome)
        (sidecar,) = agent.home.sidecars
        assert isinstance(sidecar, Sidecar)
        self.sidecar = sidecar
        for run in (agent.platform.run, agent.reconciler.run, agent.connection.run):
            stack.push_async_callback(_cancel, asyncio.create_task(run()))
        await verified(self.server, 1)

    async def _join_token(self) -> Secret:
        """Return a token that names the proxy as the server."""
        async with self.server.client() as admin:
            token = read_join_token(Secret((await admin.create_token(TokenRequest(runtime="r1"))).text))
        return JoinToken(self.proxy.url, token.runtime, token.secret, token.ca).encode()

    async def change(self, note: str) -> int:
        """Change the component and return the sequence of its delivery."""
        await self.server.apply(store(note))
        async with self.server.client() as admin:
            return (await admin.runtime("r1")).sequence

    def note_in_use(self) -> str:
        """Return the component file, which shows the change that the sidecar uses once it is verified."""
        return (self._state_dir / "resources" / "component.orders.yaml").read_text()

    async def report(self) -> Report:
        async with self.server.client() as admin:
            report = (await admin.runtime("r1")).report
        assert report is not None
        return report

    @property
    def process(self) -> Process:
        assert self.sidecar.process is not None
        return self.sidecar.process

    async def status(self, path: str) -> int:
        """Send a GET to the sidecar, as its application does; return the status."""
        url = f"http://127.0.0.1:{self.sidecar.ports.http}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status

    async def kill_sidecar(self) -> None:
        """Kill the sidecar and wait until the next one is healthy."""
        killed = self.process
        os.kill(killed.pid, signal.SIGKILL)

        async def is_another() -> bool:
            return self.sidecar.process not in (None, killed) and not self.sidecar.not_ready()

        await until(is_another)

    async def verified_after(self, before: Report) -> None:
        """Wait until the server has a newer report, which is verified."""

        async def has_news() -> bool:
            now = await self.report()
            return now.n > before.n and is_verified(now)

        await until(has_news)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory, daprd_binary: Path) -> AsyncIterator[Bed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_BACKOFF", Backoff(0.05, 0.5))
        async with AsyncExitStack() as stack:
            bed = Bed(tmp_path_factory.mktemp("faults"), daprd_binary)
            await bed.start(stack)
            yield bed


async def test_a_broken_watch_is_reconnected_without_missing_a_delivery(bed: Bed) -> None:
    bed.proxy.unavailable = True
    bed.proxy.cut()
    await bed.change("two")
    newest = await bed.change("three")
    bed.proxy.unavailable = False

    await verified(bed.server, newest)
    assert "three" in bed.note_in_use()


async def test_duplicate_and_reordered_deliveries_are_applied_once_and_in_order(bed: Bed) -> None:
    process = bed.process
    bed.proxy.duplicating = bed.proxy.swapping = True
    await bed.change("four")

    async def is_held() -> bool:
        return bed.proxy.holding

    await until(is_held)
    newest = await bed.change("five")

    await verified(bed.server, newest)
    bed.proxy.duplicating = bed.proxy.swapping = False
    assert "five" in bed.note_in_use()
    assert bed.process == process
    sent = [event for event in bed.proxy.events if b"five" in event or b"four" in event]
    assert len(sent) == 4
    assert b"five" in sent[0]


async def test_a_sidecar_restart_during_a_stalled_connection_is_reported_later(bed: Bed) -> None:
    before = await bed.report()
    bed.proxy.stall()
    await bed.kill_sidecar()
    assert await bed.report() == before
    bed.proxy.resume()

    await bed.verified_after(before)


async def test_a_sidecar_restart_while_the_server_is_down_is_reported_later(bed: Bed) -> None:
    before = await bed.report()
    port = bed.server.address.port
    await bed.stop_server()
    await bed.kill_sidecar()
    assert await bed.status("/v1.0/state/orders/key") == 204
    await bed.start_server(port)

    await bed.verified_after(before)
    await verified(bed.server, await bed.change("six"))
