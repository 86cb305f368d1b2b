"""Retrying a delivery: the same content under the next sequence and attempt, or an error."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from governor.domain.reports import State
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.values.secret import Secret
from governor.wire.rest import TokenRequest
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerBed]:
    """Run one server for this module; each test uses its own runtime names."""
    async with running(tmp_path_factory.mktemp("server")) as server:
        yield server


def layer(name: str, *stores: str) -> dict[str, Any]:
    components = (component(store, redisHost="a", redisPassword="pw") for store in stores)
    return profile(name, *components, selector={"runtime": name})


async def rejection(bed: ServerBed, name: str) -> GovernorError:
    async with bed.client() as admin:
        with pytest.raises(GovernorError) as caught:
            await admin.retry(name)
    return caught.value


async def test_a_retry_sends_the_same_content_under_the_next_attempt(bed: ServerBed) -> None:
    change = await bed.apply(runtime("again"), layer("again", "one", "two"))
    agent = await bed.enrol("again")
    first = await agent.newest()
    await agent.report(first, State.FAILED)
    async with agent.watching(after=first.sequence) as take, bed.client() as admin:
        view = await admin.retry("again")
        second = await take()
        revisions = await admin.revisions()
    assert (second.sequence, second.attempt) == (first.sequence + 1, first.attempt + 1)
    assert (second.digest, second.resources, second.revision) == (first.digest, first.resources, change.revision)
    assert (view.sequence, view.attempt, view.summary.state) == (second.sequence, second.attempt, "Pending")
    assert revisions[0].number == change.revision


async def test_a_verified_retry_completes_the_revision(bed: ServerBed) -> None:
    change = await bed.apply(runtime("whole"), layer("whole", "one"))
    agent = await bed.enrol("whole")
    await agent.report(await agent.newest(), State.FAILED)
    async with bed.client() as admin:
        await admin.retry("whole")
        await agent.report(await agent.newest(), State.VERIFIED)
        assert change.revision is not None
        (progress,) = [each async for each in admin.progress(change.revision)]
    assert [(each.runtime, each.sequence, each.done) for each in progress.runtimes] == [("whole", 2, True)]


async def test_a_retry_has_removals_for_resources_that_may_be_present(bed: ServerBed) -> None:
    await bed.apply(runtime("removes"), layer("removes", "one", "two"))
    agent = await bed.enrol("removes")
    await agent.report(await agent.newest(), State.VERIFIED)
    await bed.apply(layer("removes", "one"))
    await agent.report(await agent.newest(), State.FAILED)
    async with bed.client() as admin:
        await admin.retry("removes")
    assert [ref.name for ref in (await agent.newest()).removals] == ["two"]


async def test_a_retry_without_an_unverified_delivery_is_rejected(bed: ServerBed) -> None:
    await bed.apply(runtime("empty"), runtime("well"), layer("well", "one"))
    agent = await bed.enrol("well")
    await agent.report(await agent.newest(), State.VERIFIED)
    never, verified, unknown = [await rejection(bed, name) for name in ("empty", "well", "nobody")]
    assert (never.kind, never.code) == (Kind.PRECONDITION, "nothing-to-retry")
    assert "apply a profile" in never.message
    assert (verified.kind, verified.code) == (Kind.PRECONDITION, "nothing-to-retry")
    assert "is verified" in verified.message
    assert unknown.kind is Kind.NOT_FOUND
    assert (await agent.newest()).sequence == 1


async def test_a_disconnected_agent_gets_only_the_newest_attempt(bed: ServerBed) -> None:
    await bed.apply(runtime("away"), layer("away", "one"))
    agent = await bed.enrol("away")
    async with bed.client() as admin:
        await admin.retry("away")
        await admin.retry("away")
    newest = await agent.newest()
    assert (newest.sequence, newest.attempt) == (3, 3)


async def test_a_viewer_cannot_retry(bed: ServerBed) -> None:
    async with bed.client() as admin:
        viewer = await admin.create_token(TokenRequest(role=Role.VIEWER))
    async with bed.client(Secret(viewer.text)) as reader:
        with pytest.raises(GovernorError) as caught:
            await reader.retry("again")
    assert caught.value.kind is Kind.DENIED
