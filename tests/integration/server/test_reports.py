"""Reports: which are stored, which acknowledge a delivery, and how progress follows."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from governor.domain.bundles import Delivery
from governor.domain.documents import DocumentRef
from governor.domain.reports import State
from governor.errors import GovernorError, Kind
from governor.server.store.deliveries import newest_deliveries
from governor.server.watch.reporting import store_reports
from tests.integration.server.bed import Agent, ServerBed, component, profile, report_on, running, runtime

STORES = tuple(component(name, redisHost="a:1") for name in ("one", "two"))


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[ServerBed]:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", *STORES))
        yield bed


async def verified_reason(bed: ServerBed, name: str = "r1") -> str:
    """Return the reason of the condition Verified."""
    async with bed.client() as viewer:
        view = await viewer.runtime(name)
    return next(condition.reason for condition in view.conditions if condition.type == "Verified")


async def rejection(agent: Agent, delivery: Delivery, state: State, **changes: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await agent.report(delivery, state, **changes)
    return caught.value


async def test_each_reported_state_is_shown_and_only_verified_acknowledges(bed: ServerBed) -> None:
    agent = await bed.enrol("r1")
    delivery = await agent.newest()
    seen = [await verified_reason(bed)]
    states = [State.RECEIVED, State.PREFLIGHTED, State.APPLIED, State.UNPROVEN, State.FAILED, State.VERIFIED]
    async with bed.client() as viewer:
        for n, state in enumerate(states):
            await agent.report(delivery, state, n)
            seen.append(await verified_reason(bed))
            async with aclosing(viewer.progress(1)) as progress:
                assert (await anext(progress)).complete == (state is State.VERIFIED)
    assert seen == ["Pending", "Received", "Preflighted", "Applied", "Unproven", "Failed", "Verified"]


async def test_a_repeated_or_outdated_report_changes_nothing(bed: ServerBed) -> None:
    agent = await bed.enrol("r1")
    delivery = await agent.newest()
    kept = await agent.report(delivery, State.VERIFIED, n=5)
    async with agent.client() as client:
        await client.report(kept)
        await client.report(report_on(delivery, State.APPLIED, n=4, session=kept.session))
        late = report_on(delivery, State.FAILED, n=9, session=kept.session - 1, time=kept.time + timedelta(hours=1))
        await client.report(late)
        view = await client.runtime("r1")
    assert view.report == kept


async def test_a_report_that_is_repeated_in_a_new_session_is_not_stored_again(bed: ServerBed) -> None:
    agent = await bed.enrol("r1")
    delivery = await agent.newest()
    kept = await agent.report(delivery, State.VERIFIED, n=5)
    await agent.open_session(delivery.position)
    again = msgspec.structs.replace(kept, session=agent.session)
    changed = msgspec.structs.replace(again, n=6)

    def accept(connection: sa.Connection) -> list[bool | GovernorError]:
        contents, now = bed.services.contents, datetime.now(UTC)
        return [store_reports(connection, contents, [each], now)[0] for each in (again, changed, again)]

    assert await bed.services.store.write(accept) == [False, True, False]


async def test_reports_that_are_stored_together_take_as_many_statements_as_one(tmp_path: Path) -> None:
    names = [f"r{number:02d}" for number in range(40)]
    statements: list[str] = []
    async with running(tmp_path) as bed:
        await bed.apply(*map(runtime, names), profile("orders", *STORES))
        issued = await bed.services.store.read(
            lambda connection: newest_deliveries(connection, bed.services.contents, names)
        )

        def store(*stored: str) -> Any:
            reports = [report_on(issued[name], State.VERIFIED, session=1) for name in stored]
            return bed.services.store.write(
                lambda connection: store_reports(connection, bed.services.contents, reports, datetime.now(UTC))
            )

        def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            statements.append(statement.partition(" ")[0])

        sa.event.listen(sa.Engine, "before_cursor_execute", record)
        try:
            assert await store(names[0]) == [True]
            alone = [each for each in statements if each in ("SELECT", "INSERT", "UPDATE", "DELETE")]
            statements.clear()
            assert await store(*names[1:]) == [True] * 39
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", record)
    assert [each for each in statements if each in ("SELECT", "INSERT", "UPDATE", "DELETE")] == alone
    assert Counter(alone) <= Counter({"SELECT": 2, "INSERT": 1, "UPDATE": 2})


async def test_verified_can_be_revoked_by_a_later_report(bed: ServerBed) -> None:
    agent = await bed.enrol("r1")
    delivery = await agent.newest()
    await agent.report(delivery, State.VERIFIED, n=1)
    await agent.report(delivery, State.FAILED, n=2)
    assert await verified_reason(bed) == "Failed"


async def test_a_report_of_a_restarted_agent_replaces_the_previous_one(bed: ServerBed) -> None:
    agent = await bed.enrol("r1")
    delivery = await agent.newest()
    await agent.report(delivery, State.FAILED, n=50)
    await agent.open_session()
    await agent.report(delivery, State.VERIFIED, n=1)
    assert await verified_reason(bed) == "Verified"


async def test_an_acknowledgement_that_omits_a_resource_is_rejected(bed: ServerBed) -> None:
    agent = await bed.enrol("r1")
    delivery = await agent.newest()
    partly = report_on(delivery, State.VERIFIED).resources[:1]
    error = await rejection(agent, delivery, State.VERIFIED, resources=partly)
    empty = await rejection(agent, delivery, State.VERIFIED, resources=())
    assert (error.kind, error.code, len(error.details)) == (Kind.INVALID, "report-incomplete", 1)
    assert "Component/default/two" in error.details[0].reason
    assert len(empty.details) == 2
    assert await verified_reason(bed) == "Pending"


async def test_a_report_about_an_unknown_delivery_or_content_is_rejected(bed: ServerBed) -> None:
    agent = await bed.enrol("r1")
    delivery = await agent.newest()
    unknown = await rejection(agent, delivery, State.VERIFIED, sequence=7)
    attempt = await rejection(agent, delivery, State.VERIFIED, attempt=2)
    content = await rejection(agent, delivery, State.VERIFIED, digest="sha256:0")
    large = await rejection(agent, delivery, State.VERIFIED, sequence=1 << 70)
    assert (unknown.kind, unknown.code) == (Kind.NOT_FOUND, "delivery-unknown")
    assert {attempt.code, content.code} == {"report-foreign"}
    assert large.kind is Kind.INVALID
    assert await verified_reason(bed) == "Pending"


async def test_an_empty_delivery_is_acknowledged_only_with_its_removals(bed: ServerBed) -> None:
    agent = await bed.enrol("r1")
    await agent.report(await agent.newest(), State.VERIFIED)
    await bed.apply(deletions=(DocumentRef("Profile", "orders"),), allow_deletions=True)
    emptied = await agent.newest(after=1)
    with pytest.raises(GovernorError, match="must cover every resource"):
        await agent.report(emptied, State.VERIFIED, resources=())
    assert await verified_reason(bed) == "Pending"
    await agent.report(emptied, State.VERIFIED)
    assert emptied.resources == ()
    assert await verified_reason(bed) == "Verified"


async def test_progress_is_pushed_for_each_runtime_and_ends_when_complete(bed: ServerBed) -> None:
    await bed.apply(runtime("r2"))
    moved = await bed.apply(profile("orders", *STORES, apply={"verifyWindowSeconds": 5}))
    agents = [await bed.enrol("r1"), await bed.enrol("r2")]
    done: list[list[str]] = []
    async with bed.client() as viewer, aclosing(viewer.progress(moved.revision or 0)) as progress, asyncio.timeout(10):
        done.append([each.runtime for each in (await anext(progress)).runtimes if each.done])
        for agent in agents:
            await agent.report(await agent.newest(), State.VERIFIED)
            done.append([each.runtime for each in (await anext(progress)).runtimes if each.done])
        rest = [each async for each in progress]
    assert done == [[], ["r1"], ["r1", "r2"]]
    assert rest == []


async def test_a_newer_verified_delivery_completes_an_older_revision(bed: ServerBed) -> None:
    await bed.apply(profile("orders", *STORES, apply={"verifyWindowSeconds": 5}))
    agent = await bed.enrol("r1")
    async with bed.client() as viewer:
        async with aclosing(viewer.progress(1)) as progress:
            assert not (await anext(progress)).complete
        await agent.report(await agent.newest(), State.VERIFIED)
        async with aclosing(viewer.progress(1)) as progress:
            completed = await anext(progress)
    assert completed.complete
    assert completed.runtimes[0].sequence == 2
