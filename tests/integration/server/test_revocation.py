"""Revoking a runtime: its key ends at once and for ever, its join tokens too, and it may be enrolled anew."""

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
    """One server for this file; each test has runtimes of its own names."""
    async with running(tmp_path_factory.mktemp("server")) as server:
        yield server


async def refusal(call: Coroutine[Any, Any, Any]) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        async with asyncio.timeout(10):
            await call
    return caught.value


async def governed(bed: ServerBed, name: str) -> Agent:
    await bed.apply(runtime(name), profile(name, component("store", redisHost="a"), selector={"runtime": name}))
    return await bed.enrol(name)


async def join_secret(bed: ServerBed, name: str) -> str:
    async with bed.client() as admin:
        made = await admin.create_token(TokenRequest(runtime=name))
    return credentials.read_join_token(Secret(made.text)).secret


async def enrol(bed: ServerBed, agent: Agent, secret: str) -> None:
    async with Client(bed.url, None) as stranger:
        await stranger.enrol(EnrolRequest(agent.name, secret, credentials.encode_public_key(agent.key.public_key())))


async def revoke(bed: ServerBed, name: str) -> RuntimeView:
    async with bed.client() as admin:
        return await admin.revoke_runtime(name)


async def test_a_revoked_key_is_refused_and_its_open_watch_ends(bed: ServerBed) -> None:
    agent = await governed(bed, "ends")
    async with agent.client() as client, aclosing(client.watch("ends")) as watch:
        await anext(watch)
        await revoke(bed, "ends")
        ended = await refusal(anext(watch))
        refused = await refusal(client.runtime("ends"))
    async with bed.client() as admin:
        view = await admin.runtime("ends")
    assert ended.code == "stream-ended"
    assert refused.kind is Kind.UNAUTHENTICATED
    assert [each.reason for each in view.conditions if each.type == "Connected"] == ["Revoked"]


async def test_a_new_key_joins_anew_and_the_revoked_one_never(bed: ServerBed) -> None:
    old = await governed(bed, "anew")
    await revoke(bed, "anew")
    again = await refusal(enrol(bed, old, await join_secret(bed, "anew")))
    new = await bed.enrol("anew")
    await new.report(await new.newest(), State.VERIFIED)
    still = await refusal(enrol(bed, old, await join_secret(bed, "anew")))
    async with bed.client() as admin:
        view = await admin.runtime("anew")
    assert (again.kind, still.kind) == (Kind.UNAUTHENTICATED, Kind.UNAUTHENTICATED)
    assert "revoked" in again.message
    assert [each.status for each in view.conditions if each.type == "Verified"] == ["True"]


async def test_join_tokens_that_were_not_used_end_too(bed: ServerBed) -> None:
    await governed(bed, "tokens")
    secret = await join_secret(bed, "tokens")
    await revoke(bed, "tokens")
    error = await refusal(enrol(bed, Agent(bed, "tokens"), secret))
    assert "revoked" in error.message


async def test_there_must_be_something_to_revoke_and_an_administrator_who_does_it(bed: ServerBed) -> None:
    await bed.apply(runtime("bare"))
    async with bed.client() as admin:
        never = await refusal(admin.revoke_runtime("bare"))
        unknown = await refusal(admin.revoke_runtime("nobody"))
        editor = Secret((await admin.create_token(TokenRequest(role=Role.EDITOR))).text)
    async with bed.client(editor) as person:
        denied = await refusal(person.revoke_runtime("bare"))
    assert (never.kind, never.code) == (Kind.PRECONDITION, "not-enrolled")
    assert (unknown.kind, denied.kind) == (Kind.NOT_FOUND, Kind.DENIED)


async def test_an_agent_of_a_runtime_that_was_deleted_may_join_its_successor_with_the_same_key(bed: ServerBed) -> None:
    agent = await governed(bed, "deleted")
    refs = (DocumentRef("Profile", "deleted"), DocumentRef("Runtime", "deleted"))
    await bed.apply(deletions=refs, allow_deletions=True)
    await bed.apply(
        runtime("deleted"), profile("deleted", component("store", redisHost="b"), selector={"runtime": "deleted"})
    )
    await enrol(bed, agent, await join_secret(bed, "deleted"))
    async with agent.client() as client, aclosing(client.watch("deleted")) as watch:
        assert '"sequence":2' in (await anext(watch)).payload
