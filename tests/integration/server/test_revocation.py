"""Revoking a runtime: its key and unused join tokens become invalid; it can be enrolled again with a new key."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from governor.client import Client
from governor.domain.documents import DocumentRef
from governor.domain.reports import State
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.rest import EnrolRequest, RuntimeView, TokenRequest
from tests.integration.server.bed import Agent, ServerBed, component, profile, running, runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerBed]:
    """Run one server for this module; each test uses its own runtime names."""
    async with running(tmp_path_factory.mktemp("server")) as server:
        yield server


async def rejection(call: Coroutine[Any, Any, Any]) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        async with asyncio.timeout(10):
            await call
    return caught.value


async def enrolled_agent(bed: ServerBed, name: str) -> Agent:
    await bed.apply(runtime(name), profile(name, component("store", redisHost="a"), selector={"runtime": name}))
    return await bed.enrol(name)


async def join_secret(bed: ServerBed, name: str) -> str:
    async with bed.client() as admin:
        created = await admin.create_token(TokenRequest(runtime=name))
    return credentials.read_join_token(Secret(created.text)).secret


async def enrol(bed: ServerBed, agent: Agent, secret: str) -> None:
    async with Client(bed.url, None) as anonymous:
        await anonymous.enrol(EnrolRequest(agent.name, secret, credentials.encode_public_key(agent.key.public_key())))


async def revoke(bed: ServerBed, name: str) -> RuntimeView:
    async with bed.client() as admin:
        return await admin.revoke_runtime(name)


async def test_a_revoked_key_is_rejected_and_its_watch_is_closed(bed: ServerBed) -> None:
    agent = await enrolled_agent(bed, "closes")
    async with agent.client() as client, aclosing(client.watch("closes")) as watch:
        await anext(watch)
        await revoke(bed, "closes")
        closed = await rejection(anext(watch))
        rejected = await rejection(client.runtime("closes"))
    async with bed.client() as admin:
        view = await admin.runtime("closes")
    assert closed.code == "stream-ended"
    assert rejected.kind is Kind.UNAUTHENTICATED
    assert [each.reason for each in view.conditions if each.type == "Connected"] == ["Revoked"]


async def test_a_new_key_can_enrol_and_the_revoked_one_cannot(bed: ServerBed) -> None:
    old = await enrolled_agent(bed, "again")
    await revoke(bed, "again")
    again = await rejection(enrol(bed, old, await join_secret(bed, "again")))
    new = await bed.enrol("again")
    await new.report(await new.newest(), State.VERIFIED)
    still = await rejection(enrol(bed, old, await join_secret(bed, "again")))
    async with bed.client() as admin:
        view = await admin.runtime("again")
    assert (again.kind, still.kind) == (Kind.UNAUTHENTICATED, Kind.UNAUTHENTICATED)
    assert "revoked" in again.message
    assert [each.status for each in view.conditions if each.type == "Verified"] == ["True"]


async def test_unused_join_tokens_are_revoked_too(bed: ServerBed) -> None:
    await enrolled_agent(bed, "tokens")
    secret = await join_secret(bed, "tokens")
    await revoke(bed, "tokens")
    error = await rejection(enrol(bed, Agent(bed, "tokens"), secret))
    assert "revoked" in error.message


async def test_revoking_needs_an_enrolled_runtime_and_an_admin(bed: ServerBed) -> None:
    await bed.apply(runtime("bare"))
    async with bed.client() as admin:
        never = await rejection(admin.revoke_runtime("bare"))
        unknown = await rejection(admin.revoke_runtime("nobody"))
        editor = Secret((await admin.create_token(TokenRequest(role=Role.EDITOR))).text)
    async with bed.client(editor) as person:
        denied = await rejection(person.revoke_runtime("bare"))
    assert (never.kind, never.code) == (Kind.PRECONDITION, "not-enrolled")
    assert (unknown.kind, denied.kind) == (Kind.NOT_FOUND, Kind.DENIED)


async def test_the_agent_of_a_deleted_runtime_may_enrol_again_with_the_same_key(bed: ServerBed) -> None:
    agent = await enrolled_agent(bed, "deleted")
    refs = (DocumentRef("Profile", "deleted"), DocumentRef("Runtime", "deleted"))
    await bed.apply(deletions=refs, allow_deletions=True)
    await bed.apply(
        runtime("deleted"), profile("deleted", component("store", redisHost="b"), selector={"runtime": "deleted"})
    )
    await enrol(bed, agent, await join_secret(bed, "deleted"))
    async with agent.client() as client, aclosing(client.watch("deleted")) as watch:
        assert '"sequence":2' in (await anext(watch)).payload


async def test_unused_join_tokens_of_a_deleted_runtime_do_not_admit_to_its_successor(bed: ServerBed) -> None:
    await bed.apply(runtime("heir"))
    secret = await join_secret(bed, "heir")
    await bed.apply(deletions=(DocumentRef("Runtime", "heir"),), allow_deletions=True)
    await bed.apply(runtime("heir"))
    error = await rejection(enrol(bed, Agent(bed, "heir"), secret))
    await enrol(bed, Agent(bed, "heir"), await join_secret(bed, "heir"))
    assert (error.kind, "revoked" in error.message) == (Kind.UNAUTHENTICATED, True)
