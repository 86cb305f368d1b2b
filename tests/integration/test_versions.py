"""Version 0.1.0, run from its wheel, together with this version; and the upgrade of its directories."""

import asyncio
import json
import shutil
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from demo.programs import GovernorServer
from governor.agent.main import Agent
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.domain.conditions import Status
from governor.domain.reports import State
from governor.errors import GovernorError
from governor.server.data_directory import DATABASE
from governor.server.store.backup import backup
from governor.wire.rest import PREFIX, ChangeRequest, RuntimeView, TokenRequest
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.agent.bed import JumpingClock, component, connected_agent, loaded
from tests.integration.agent.test_server import AgentProgram
from tests.integration.server.bed import ServerBed, profile, running, runtime

WHEEL = Path(__file__).parents[1] / "data" / "runtime_governor-0.1.0-py3-none-any.whl"
WITHIN_S = 200.0


@pytest.fixture(scope="module")
def old_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel of version 0.1.0."""
    directory = tmp_path_factory.mktemp("version-0.1.0")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(directory)
    return directory


class OldServer(GovernorServer):
    """The server of version 0.1.0."""

    def __init__(self, directory: Path, version: Path) -> None:
        super().__init__(directory)
        self._version = version

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(self._version)}

    async def runtime(self) -> dict[str, Any]:
        """Return the runtime as the API of this version shows it."""
        headers = {"Authorization": f"Bearer {self.admin_token_file.read_text().strip()}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{self.url}{PREFIX}/runtimes/r1") as response,
        ):
            found: dict[str, Any] = await response.json()
            return found


class OldAgent(AgentProgram):
    """The agent of version 0.1.0."""

    def __init__(self, directory: Path, daprd: Path, version: Path) -> None:
        super().__init__(directory, daprd)
        self._version = version

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(self._version)}

    def settings(self) -> dict[str, Any]:
        """Return the settings that this version has."""
        return {name: value for name, value in super().settings().items() if name != "resync-interval"}

    def process(self) -> object:
        """Return pid and start time of the sidecar."""
        return json.loads((self.state_dir / "sidecars" / "app.json").read_text())["process"]

    async def loaded(self) -> list[str]:
        """Return the components that the sidecar uses."""
        url = f"http://127.0.0.1:{self.ports['http']}/v1.0/metadata"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return [each["name"] for each in (await response.json())["components"]]


def store(name: str) -> dict[str, Any]:
    return profile("orders", component(name, "state.in-memory"))


def broken() -> dict[str, Any]:
    """Return a profile with a component on which daprd exits."""
    made = component("broken", "state.no-such-type")
    made["metadata"]["annotations"] = {"runtime-governor.dev/pluggable": "true"}
    return profile("orders", made)


async def view(bed: ServerBed) -> RuntimeView:
    async with bed.client() as admin:
        return await admin.runtime("r1")


async def shown(bed: ServerBed, sequence: int, reason: str = "Verified") -> RuntimeView:
    """Wait until the newest delivery has a reason."""

    async def found() -> RuntimeView | None:
        seen = await view(bed)
        reasons = [each.reason for each in seen.conditions if each.type == "Verified"]
        return seen if (seen.sequence, reasons) == (sequence, [reason]) else None

    seen = await until(found, within_s=WITHIN_S)
    assert seen is not None
    return seen


async def shown_by_old(server: OldServer, sequence: int, reason: str = "Verified") -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        seen = await server.runtime()
        reasons = [each["reason"] for each in seen["conditions"] if each["type"] == "Verified"]
        return seen if (seen["sequence"], reasons) == (sequence, [reason]) else None

    seen = await until(found, within_s=WITHIN_S)
    assert seen is not None
    return seen


def test_the_old_wheel_has_version_0_1_0(old_version: Path) -> None:
    assert '__version__ = "0.1.0"' in (old_version / "governor" / "__init__.py").read_text()
    assert not (old_version / "governor" / "wire" / "formats.py").exists()


async def test_an_old_agent_works_with_this_server_also_after_a_restore(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer, old_version: Path
) -> None:
    data, file = tmp_path / "server", tmp_path / "backup.db"
    async with running(data) as bed:
        port = bed.address.port
        await bed.apply(runtime("r1"), store("one"))
        agent = OldAgent(tmp_path / "agent", daprd_binary, old_version)
        await agent.join(bed, "r1")
        await start_server(agent)
        first = await shown(bed, 1)
        assert first.report is not None
        assert (first.report.agent, str(first.report.workloads[0].workload)) == (
            "runtime-governor/0.1.0",
            "Sidecar/app",
        )
        await asyncio.to_thread(backup, data / DATABASE, file)
        await bed.apply(broken())
        failed = await shown(bed, 2, "Failed")
        assert failed.summary.actor == "editor"
        await bed.apply(store("two"))
        await shown(bed, 3)
        assert await agent.loaded() == ["two"]
    replace_by_copy(data / DATABASE, file)
    async with running(data, port=port) as bed:
        seen: list[RuntimeView] = []

        async def is_confirmed() -> bool:
            seen.append(await view(bed))
            return {each.status for each in seen[-1].conditions} == {Status.TRUE}

        await until(is_confirmed, within_s=WITHIN_S)
        assert seen[-1].sequence == 4
        assert await agent.loaded() == ["one"]
        process = agent.process()
    async with running(data, port=port) as bed:
        # It sends no report when it reconnects, so it gets its delivery again; its sidecar is not restarted.
        await shown(bed, 5)
        assert agent.process() == process


async def test_an_old_agent_is_refused_while_its_runtime_is_held_and_keeps_what_it_has(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer, old_version: Path
) -> None:
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), store("one"))
        agent = OldAgent(tmp_path / "agent", daprd_binary, old_version)
        await agent.join(bed, "r1")
        await start_server(agent)
        await shown(bed, 1)
        process = agent.process()
        until_later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        await bed.apply(restrained(hold={"until": until_later, "reason": "inventory"}), store("two"))

        async def is_refused() -> bool:
            return "AgentOutdated" in {each.reason for each in (await view(bed)).conditions}

        await until(is_refused, within_s=WITHIN_S)
        held = await view(bed)
        assert "formats up to 1: upgrade the agent" in held.summary.message
        assert "its agent has only formats up to 1: upgrade the agent" in agent.log.read_text()
        assert (await agent.loaded(), agent.process()) == (["one"], process)
        await bed.apply(runtime("r1"))
        await shown(bed, 3)
        assert await agent.loaded() == ["two"]


def restrained(**spec: Any) -> dict[str, Any]:
    document = runtime("r1")
    return {**document, "spec": {**document["spec"], **spec}}


def replace_by_copy(database: Path, file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    shutil.copy(file, database)


async def test_this_agent_works_with_an_old_server(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer, old_version: Path
) -> None:
    server = await start_server(OldServer(tmp_path / "server", old_version))
    async with server.client() as admin:
        await admin.change(ChangeRequest(documents=(runtime("r1"), store("one"))))
    async with connected_agent(tmp_path, daprd_binary, JumpingClock(), server) as agent:
        first = await shown_by_old(server, 1)
        assert first["report"]["format"] == 1
        assert first["report"]["boot"] == agent.outbox.boot
        async with server.client() as admin:
            await admin.change(ChangeRequest(documents=(broken(),)))
            failed = await shown_by_old(server, 2, "Failed")
            await admin.change(ChangeRequest(documents=(store("two"),)))
            await shown_by_old(server, 3)
            with pytest.raises(GovernorError, match="Runtime/r1 is not valid"):
                await admin.change(ChangeRequest(documents=(restrained(windows=[]),)))
        evidence = failed["report"]["resources"][0]["evidence"]
        assert "no-such-type" in evidence[-1]["text"]
        assert await loaded(agent) == ["two"]


async def test_the_directories_of_version_0_1_are_upgraded_with_a_pending_delivery(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer, old_version: Path
) -> None:
    server = await start_server(OldServer(tmp_path / "server", old_version))
    agent = OldAgent(tmp_path / "agent", daprd_binary, old_version)
    async with server.client() as admin:
        await admin.change(ChangeRequest(documents=(runtime("r1"), store("one"))))
        agent.directory.mkdir()
        agent.token_file.write_text((await admin.create_token(TokenRequest(runtime="r1"))).text)
        await start_server(agent)
        await shown_by_old(server, 1)
        await admin.change(ChangeRequest(documents=(broken(),)))
        failed = await shown_by_old(server, 2, "Failed")
        await agent.stop()
        await admin.change(ChangeRequest(documents=(store("two"),)))
        await shown_by_old(server, 3, "Pending")
    port = server.ports["api"]
    await server.stop()
    state = AgentState(FileBlobs(agent.state_dir))
    assert await state.membership() is not None
    assert [(each.sequence, each.failed, each.incarnation) for each in (await state.trials()).values()] == [
        (2, True, "")
    ]

    async with running(server.data_dir) as bed:
        migrated = await view(bed)  # before the agent reports again

    shutil.move(agent.state_dir, tmp_path / "state")
    shutil.move(tmp_path / "state" / "resources", tmp_path / "resources")
    async with connected_agent(tmp_path, daprd_binary, JumpingClock()) as upgraded:
        # Without a server: the failed change stays in quarantine, and its predecessor is in use.
        await until(lambda: has_rolled_back(upgraded), within_s=WITHIN_S)
        assert await loaded(upgraded) == ["one"]
        async with running(server.data_dir, port=port) as bed:
            await shown(bed, 3)
            assert await loaded(upgraded) == ["two"]
            await bed.apply(store("three"))
            await shown(bed, 4)
    assert migrated.report is not None
    assert (migrated.sequence, migrated.report.sequence, migrated.report.session) == (3, 2, 0)
    assert [each.state for each in migrated.report.resources] == [
        State(each["state"]) for each in failed["report"]["resources"]
    ]


async def has_rolled_back(agent: Agent) -> bool:
    newest = agent.outbox.newest
    return newest is not None and "of delivery 1; verified" in newest.workloads[0].evidence[-1].text
