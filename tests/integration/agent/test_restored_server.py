"""A real agent and its sidecar after a restore of the server, and after the agent's clock was set back."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from governor.agent.main import Agent
from governor.domain.conditions import Status
from governor.domain.reports import State, overall
from governor.server.data_directory import DATABASE
from governor.server.store.backup import backup, restore
from governor.wire.rest import RuntimeView
from testbed.waiting import until
from tests.integration.agent.bed import JumpingClock, component, connected_agent, loaded
from tests.integration.server.bed import ServerBed, profile, running, runtime

DECIDED_WITHIN_S = 200.0


def store(name: str) -> dict[str, object]:
    """Return a profile with one component; its name is what a sidecar shows."""
    return profile("orders", component(name, "state.in-memory"))


async def view(bed: ServerBed) -> RuntimeView:
    async with bed.client() as admin:
        return await admin.runtime("r1")


def is_verified(shown: RuntimeView) -> bool:
    return {each.status for each in shown.conditions} == {Status.TRUE}


async def verified(bed: ServerBed, sequence: int) -> list[RuntimeView]:
    """Wait until a delivery is verified and the agent is connected; return everything that was shown until then."""
    seen: list[RuntimeView] = []

    async def is_done() -> bool:
        seen.append(await view(bed))
        return is_verified(seen[-1]) and seen[-1].sequence == sequence

    await until(is_done, within_s=DECIDED_WITHIN_S)
    return seen


def by_command(database: Path, file: Path) -> None:
    restore(file, database)


def by_file_copy(database: Path, file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    shutil.copy(file, database)


async def test_the_sidecar_follows_a_restored_server_and_nothing_else_is_shown_as_verified(
    tmp_path: Path, daprd_binary: Path
) -> None:
    data, ways = tmp_path / "server", ((by_command, ""), (by_file_copy, ""), (by_file_copy, "other"))
    async with AsyncExitStack() as stack:
        async with running(data) as bed:
            await bed.apply(runtime("r1"), store("zero"))
            agent = await stack.enter_async_context(connected_agent(tmp_path, daprd_binary, JumpingClock(), bed))
            await verified(bed, 1)
        newest = 1
        for replace, other in ways:
            newest = await restored(agent, data, bed.address.port, newest, replace, other)


async def restored(
    agent: Agent, data: Path, port: int, newest: int, replace: Callable[[Path, Path], None], other: str
) -> int:
    """Restore the server to a state before what the agent holds, and return the sequence that the agent then has."""
    file, kept = data.parent / f"{newest}.db", f"kept-{newest}"
    async with running(data, port=port) as bed:
        await bed.apply(store(kept))
        await verified(bed, newest + 1)
        await asyncio.to_thread(backup, data / DATABASE, file)
        for number in range(3):
            await bed.apply(store(f"forgotten-{number}"))
        await verified(bed, newest + 4)
        assert await loaded(agent) == ["forgotten-2"]
    await asyncio.to_thread(replace, data / DATABASE, file)
    if other:
        # On another port, where the agent does not find it.
        async with running(data) as bed:
            for number in range(3):
                await bed.apply(store(f"{other}-{number}"))
    async with running(data, port=port) as bed:
        seen = await verified(bed, newest + 5)
        assert [each for each in seen if is_verified(each)] == seen[-1:]
        assert await loaded(agent) == [f"{other}-2" if other else kept]
        async with bed.client() as admin:
            revisions = await admin.revisions()
            assert [(await anext(admin.progress(each.number))).complete for each in revisions[:2]] == [True, True]
    return newest + 5


async def test_a_failure_after_the_agents_clock_was_set_back_revokes_verified(
    tmp_path: Path, daprd_binary: Path
) -> None:
    """The next process of the agent reports with an earlier time than the one that verified."""
    clock = JumpingClock()
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), store("one"))
        async with connected_agent(tmp_path, daprd_binary, clock, bed):
            await verified(bed, 1)
        # Another file with the same component: daprd would load both, so the agent rejects it.
        foreign = (tmp_path / "resources" / "component.one.yaml").read_text()
        (tmp_path / "resources" / "foreign.yaml").write_text(foreign)
        clock.jump(-30)
        before = await view(bed)
        async with connected_agent(tmp_path, daprd_binary, clock):

            async def is_failed() -> bool:
                shown = await view(bed)
                return shown.report is not None and overall(shown.report) is State.FAILED

            await until(is_failed, within_s=DECIDED_WITHIN_S)
            after = await view(bed)
    assert before.report is not None
    assert after.report is not None
    assert after.report.time < before.report.time
    assert not is_verified(after)
