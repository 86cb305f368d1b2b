"""Runtimes page by page, filtered by the server, with summaries; followers that are woken only by what they follow."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest

from governor.domain.documents import DocumentRef
from governor.domain.reports import State
from governor.server.api import documents
from governor.server.store.deliveries import newest_deliveries
from governor.wire.rest import PREFIX, RevisionProgress, RuntimeView
from tests.integration.server.bed import Agent, ServerBed, component, profile, running, runtime

NAMES = [f"r{number:02d}" for number in range(25)]


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[ServerBed]:
    async with running(tmp_path) as bed:
        runtimes = [runtime(name, region="eu" if number % 2 else "us", rack=name) for number, name in enumerate(NAMES)]
        await bed.apply(*runtimes, profile("shared", component("store", redisHost="a")))
        yield bed


async def get(bed: ServerBed, path: str) -> tuple[list[RuntimeView], str]:
    """Return a page of runtimes and the address of the next one, if any."""
    headers = {"Authorization": f"Bearer {bed.admin_token.reveal()}"}
    async with aiohttp.ClientSession(bed.url, headers=headers) as session, session.get(path) as response:
        body = await response.read()
        assert response.status == 200, body
        following = str(response.links["next"]["url"]) if "next" in response.links else ""
        return msgspec.json.decode(body, type=list[RuntimeView]), following.removeprefix(bed.url)


async def names(bed: ServerBed, query: str) -> list[str]:
    return [each.name for each in (await get(bed, f"{PREFIX}/runtimes?{query}"))[0]]


async def test_pages_follow_each_other_until_the_last(bed: ServerBed) -> None:
    path, sizes, seen = f"{PREFIX}/runtimes?limit=10&selector=rack", [], list[str]()
    while path:
        page, path = await get(bed, path)
        sizes.append(len(page))
        seen += [each.name for each in page]
    assert (seen, sizes) == (NAMES, [10, 10, 5])


async def test_a_page_that_ends_with_the_last_runtime_has_no_next_one(bed: ServerBed) -> None:
    _, following = await get(bed, f"{PREFIX}/runtimes?limit=25")
    assert following == ""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("name=r1", NAMES[10:20]),
        ("name=r1&after=r15", NAMES[16:20]),
        (f"selector={quote('region=eu,rack in (r01,r02,r03)')}", ["r01", "r03"]),
        (f"selector={quote('!region')}", []),
        ("state=Pending&limit=3", NAMES[:3]),
        ("state=Verified", []),
        ("after=zzz", []),
    ],
)
async def test_the_server_filters(bed: ServerBed, query: str, expected: list[str]) -> None:
    assert await names(bed, query) == expected


async def test_runtimes_are_found_by_their_state(bed: ServerBed) -> None:
    ok, bad = await bed.enrol("r03"), await bed.enrol("r20")
    async with ok.watching() as take:
        await ok.report(await take(), State.VERIFIED)
        await bad.report(await bad.newest(), State.FAILED)
        assert await names(bed, "state=Verified") == ["r03"]
        assert await names(bed, "state=Failed") == ["r20"]
        assert len(await names(bed, "state=Pending")) == 23
        assert await names(bed, "state=NotWatching") == ["r20"]
        assert len(await names(bed, "state=NotEnrolled")) == 23


async def test_a_list_has_summaries_unless_the_whole_is_requested(bed: ServerBed) -> None:
    agent = await bed.enrol("r03")
    await agent.report(await agent.newest(), State.VERIFIED)
    async with bed.client() as viewer:
        (brief,) = await viewer.runtimes(name="r03")
        (full,) = await viewer.runtimes(name="r03", full=True)
        one = await viewer.runtime("r03")
    assert full == one
    assert brief.report is None
    assert [(each.type, each.reason, each.evidence) for each in brief.conditions] == [
        (each.type, each.reason, ()) for each in one.conditions
    ]
    assert brief.summary == one.summary


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "selector=a=b=c", f"selector={quote('a in b')}", "full=1"])
async def test_a_wrong_query_is_rejected(bed: ServerBed, query: str) -> None:
    headers = {"Authorization": f"Bearer {bed.admin_token.reveal()}"}
    url = f"{bed.url}{PREFIX}/runtimes?{query}"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as response:
        assert response.status == 400


async def verified(agent: Agent) -> None:
    await agent.report(await agent.newest(), State.VERIFIED)


async def test_many_runtimes_are_counted_and_few_of_them_listed(
    bed: ServerBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_LISTED", 4)
    await verified(await bed.enrol("r01"))
    async with bed.client() as viewer, aclosing(viewer.progress(1)) as events:
        progress = await anext(events)
    assert [(each.state, each.done, each.has_agent, each.count) for each in progress.counts] == [
        ("Pending", False, False, 24),
        ("Verified", True, True, 1),
    ]
    assert [each.runtime for each in progress.runtimes] == ["r00", "r02", "r03", "r04"]


async def test_a_deleted_runtime_does_not_count(bed: ServerBed) -> None:
    await bed.apply(deletions=(DocumentRef("Runtime", "r05"),), allow_deletions=True)
    async with bed.client() as viewer, aclosing(viewer.progress(1)) as events:
        progress = await anext(events)
    assert sum(each.count for each in progress.counts) == len(progress.runtimes) == 24


@pytest.fixture
def reads(bed: ServerBed, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the revisions whose progress is read."""
    seen: list[int] = []
    read = bed.services.progress._read

    async def recorded(revision: int, *arguments: Any) -> RevisionProgress:
        seen.append(revision)
        return await read(revision, *arguments)

    monkeypatch.setattr(bed.services.progress, "_read", recorded)
    return seen


async def test_a_follower_is_woken_only_by_the_runtimes_of_its_revision(bed: ServerBed, reads: list[int]) -> None:
    change = await bed.apply(profile("one", component("two", redisHost="b"), selector={"runtime": "r01"}))
    other, own = await bed.enrol("r02"), await bed.enrol("r01")
    async with bed.client() as viewer, aclosing(viewer.progress(change.revision or 0)) as events:
        first = await anext(events)
        reads.clear()
        await verified(other)
        before = len(reads)
        await verified(own)
        last = await anext(events)
    assert ([each.runtime for each in first.runtimes], last.complete) == (["r01"], True)
    assert (before, len(reads)) == (0, 1)


async def test_followers_of_one_revision_share_what_is_read(bed: ServerBed, reads: list[int]) -> None:
    agent = await bed.enrol("r01")
    async with bed.client() as viewer:
        followers = [viewer.progress(1) for _ in range(5)]
        for each in followers:
            await anext(each)
        reads.clear()
        await verified(agent)
        async with asyncio.timeout(10):
            changed = [await anext(each) for each in followers]
        for each in followers:
            await each.aclose()
    assert len(reads) == 1
    assert {sum(count.count for count in each.counts if count.done) for each in changed} == {1}


async def test_one_runtime_of_a_revision_can_be_followed(bed: ServerBed) -> None:
    agent = await bed.enrol("r01")
    async with bed.client() as viewer, aclosing(viewer.progress(1, "r01")) as events:
        first = await anext(events)
        await verified(agent)
        last = await anext(events)
    assert [[each.runtime for each in progress.runtimes] for progress in (first, last)] == [["r01"], ["r01"]]
    assert (first.complete, last.complete) == (False, True)


async def test_reports_that_are_lost_late_and_sent_twice_under_load_leave_the_newest(bed: ServerBed) -> None:
    """Every agent sends its reports twice and out of order, all at once; one of them is lost for some."""
    key = await bed.enrol_all(NAMES)
    newest = await bed.services.store.read(
        lambda connection: newest_deliveries(connection, bed.services.contents, NAMES)
    )

    async def send(number: int, name: str) -> None:
        agent = Agent(bed, name)
        agent.key = key
        await agent.open_session()
        order = [(State.RECEIVED, 1), (State.VERIFIED, 3), (State.FAILED, 2)][: 3 if number % 3 else 2]
        rotated = order[number % len(order) :] + order[: number % len(order)]
        repeated = (*rotated, *reversed(rotated))
        await asyncio.gather(*(agent.report(newest[name], state, n=n) for state, n in repeated))

    await asyncio.gather(*(send(number, name) for number, name in enumerate(NAMES)))
    async with bed.client() as viewer:
        views = await viewer.runtimes(full=True)
        progress = [each async for each in viewer.progress(1)]
    assert {(each.report.n if each.report else 0) for each in views} == {3}
    assert {each.summary.state.partition(",")[0] for each in views} == {"Verified"}
    assert progress[-1].complete
