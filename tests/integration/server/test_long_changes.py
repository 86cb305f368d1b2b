"""Changes that take long: they are followed by their id, do not hold up others, and cost only what they touch."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from governor.client import api
from governor.domain.changes import Change, ChangeState
from governor.errors import GovernorError, Kind
from governor.server.changes import compiler, preparation
from governor.server.services import DEFAULT_TIMING
from governor.wire.rest import ChangeRequest
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

SOON = DEFAULT_TIMING._replace(change_s=0.05)


def layer(name: str, host: str, **spec: Any) -> dict[str, Any]:
    return profile(name, component(f"store-{name}", redisHost=host), **spec)


@asynccontextmanager
async def slow_compilation(monkeypatch: pytest.MonkeyPatch, slow: str) -> AsyncIterator[threading.Event]:
    """Let the compilation of changes of one profile wait for an event."""
    released, compile_affected = threading.Event(), compiler.compile_affected

    def wait(*arguments: Any) -> Any:
        if any(ref.name == slow for ref in arguments[3]):
            assert released.wait(60)
        return compile_affected(*arguments)

    monkeypatch.setattr(preparation, "compile_affected", wait)
    try:
        yield released
    finally:
        released.set()


async def test_a_change_that_takes_long_is_pending_and_is_followed_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PENDING_S", 0.01)
    async with running(tmp_path, timing=SOON) as bed, bed.client() as admin:
        await bed.apply(runtime("r1"), layer("p", "a"))
        async with slow_compilation(monkeypatch, "p") as released:
            deciding = asyncio.ensure_future(admin.change(ChangeRequest((layer("p", "b"),))))

            async def is_pending() -> bool:
                return bool(bed.services.changes._pending)

            await until(is_pending)
            (name,) = bed.services.changes._pending
            pending = await admin._get(f"/changes/{name}", Change)
            released.set()
            change = await deciding
        stored = await admin._get(f"/changes/{name}", Change)
    assert (pending.id, pending.state, pending.revision) == (name, ChangeState.PENDING, None)
    assert (change.id, change.state, change.revision) == (name, ChangeState.ACCEPTED, 2)
    assert stored == change


async def test_a_pending_change_that_is_rejected_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PENDING_S", 0.01)
    async with running(tmp_path, timing=SOON) as bed, bed.client() as admin:
        await bed.apply(runtime("r1"), layer("p", "a"))
        async with slow_compilation(monkeypatch, "p") as released:
            conflicting = profile("p", component("store-p", redisHost="${runtime.labels.x}"))
            deciding = asyncio.ensure_future(admin.change(ChangeRequest((conflicting,))))

            async def is_pending() -> bool:
                return bool(bed.services.changes._pending)

            await until(is_pending)
            released.set()
            with pytest.raises(GovernorError) as caught:
                await deciding
    assert (caught.value.kind, caught.value.code) == (Kind.INVALID, "variable-unknown")


async def test_a_long_change_does_not_hold_up_another_and_both_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long one is decided again for what the other has changed."""
    async with running(tmp_path) as bed, bed.client() as admin:
        await bed.apply(runtime("r1"), layer("long", "a"), layer("short", "a"))
        async with slow_compilation(monkeypatch, "long") as released:
            deciding = asyncio.ensure_future(admin.change(ChangeRequest((layer("long", "b"),))))
            async with asyncio.timeout(20):
                short = await admin.change(ChangeRequest((layer("short", "b"),)))
            assert not deciding.done()
            released.set()
            long = await deciding
        await bed.issued()
        agent = await bed.enrol("r1")
        delivery = await agent.newest()
    hosts = [each["spec"]["metadata"][0]["value"] for each in delivery.resources]
    assert (short.revision, long.revision, hosts) == (2, 3, ["b", "b"])
    assert delivery.documents == {"Profile/long": 2, "Profile/short": 2, "Runtime/r1": 1}


async def test_an_if_match_that_another_change_made_wrong_meanwhile_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as bed, bed.client() as admin:
        await bed.apply(runtime("r1"), layer("long", "a"))
        async with slow_compilation(monkeypatch, "long") as released:
            request = ChangeRequest((layer("long", "b"),), if_match={"Runtime/r1": 1})
            deciding = asyncio.ensure_future(admin.change(request))
            await admin.change(ChangeRequest((runtime("r1", region="eu"),)))
            released.set()
            with pytest.raises(GovernorError) as caught:
                await deciding
    assert caught.value.code == "version-mismatch"


async def statements(bed: ServerBed, *documents: dict[str, Any]) -> int:
    """Return how many statements a change takes until its deliveries are issued."""
    count = 0

    def record(*_: Any) -> None:
        nonlocal count
        count += 1

    sa.event.listen(sa.Engine, "before_cursor_execute", record)
    try:
        async with bed.client() as admin:
            await admin.change(ChangeRequest(documents))
        await bed.services.issuer._reconcile("drafts")
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", record)
    return count


async def test_the_cost_of_a_change_depends_neither_on_other_runtimes_nor_on_its_history(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        own = {"selector": {"runtime": "r0"}}
        await bed.apply(runtime("r0"), layer("p", "first", **own))
        alone = await statements(bed, layer("p", "second", **own))

        numbers = range(300)
        await bed.apply(*(runtime(f"o{number}") for number in numbers))
        await bed.apply(*(layer(f"q{number}", "x", selector={"runtime": f"o{number}"}) for number in numbers))
        for number in range(60):
            await bed.apply(layer("p", str(number), **own))
        later = await statements(bed, layer("p", "last", **own))
    # The loop may find its work done by the other one.
    assert abs(later - alone) <= 4


async def test_a_change_for_many_runtimes_takes_as_many_statements_as_batches(tmp_path: Path) -> None:
    counts = []
    for size in (10, 400):
        async with running(tmp_path / str(size)) as bed:
            await bed.apply(*(runtime(f"r{number}") for number in range(size)), layer("p", "a"))
            counts.append(await statements(bed, layer("p", "b")))
    assert abs(counts[1] - counts[0]) <= 4
