"""What was committed is announced to streams, even if the request that committed it was cancelled meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.reports import State
from governor.domain.roles import Role
from governor.server.api.endpoints import Call
from governor.server.api.runtimes import report, revoke
from governor.server.identity.known_credentials import Principal
from governor.server.watch.followers import topic_of
from governor.server.watch.hub import Stream
from governor.wire import credentials
from governor.wire.rest import ChangeRequest, EnrolRequest, TokenRequest
from tests.integration.server.bed import Agent, ServerBed, component, profile, report_on, running, runtime

WITHIN_S = 20
Act: TypeAlias = Callable[[], Awaitable[Any]]

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Commits:
    """Holds the next commit of the store until it is released."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()
        self._released.set()

    def __call__(self, _connection: sa.Connection) -> None:
        self._reached.set()
        assert self._released.wait(WITHIN_S)

    async def cancel_during(self, act: Act) -> None:
        """Start an act and cancel it while its transaction is being committed."""
        self._reached.clear()
        self._released.clear()
        task = asyncio.ensure_future(act())
        assert await asyncio.to_thread(self._reached.wait, WITHIN_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self._released.set()


@pytest.fixture(scope="module")
def commits() -> Iterator[Commits]:
    """Observe the commits of the server, which is started later and stopped earlier."""
    commits = Commits()
    sa.event.listen(sa.Engine, "commit", commits)
    yield commits
    sa.event.remove(sa.Engine, "commit", commits)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory, commits: Commits) -> AsyncIterator[ServerBed]:
    """Run one server for this module; each test uses its own runtime name."""
    async with running(tmp_path_factory.mktemp("server")) as server:
        yield server


async def configured(bed: ServerBed, name: str) -> Agent:
    store = component("store", redisHost="a")
    await bed.apply(runtime(name), profile(name, store, selector={"runtime": name}))
    return await bed.enrol(name)


def call(bed: ServerBed, name: str, body: Any = None) -> Call:
    return Call(bed.services, Principal("test", ""), {"runtime": name}, {}, {}, body)


@contextmanager
def following(bed: ServerBed, runtime: str) -> Iterator[Stream]:
    """Follow one runtime of a revision."""
    topic = topic_of(1, runtime)
    with bed.services.hub.followers.follow(topic, {runtime}), bed.services.hub.open(topic, "test") as stream:
        yield stream


async def is_woken(stream: Stream) -> bool:
    async with asyncio.timeout(WITHIN_S):
        await stream.wait()
    return True


async def test_an_accepted_change_wakes_its_runtime(bed: ServerBed, commits: Commits) -> None:
    await configured(bed, "change")
    changed = profile("change", component("store", redisHost="b"), selector={"runtime": "change"})
    with bed.services.hub.open("change", "test") as watch:
        await commits.cancel_during(lambda: bed.services.changes.submit(ChangeRequest((changed,)), "test"))
        assert await is_woken(watch)


async def test_a_retry_wakes_its_runtime(bed: ServerBed, commits: Commits) -> None:
    await configured(bed, "retry")
    with bed.services.hub.open("retry", "test") as watch:
        await commits.cancel_during(lambda: bed.services.redelivery.retry("retry", "test"))
        assert await is_woken(watch)


async def test_a_report_wakes_progress_streams_of_its_revision(bed: ServerBed, commits: Commits) -> None:
    agent = await configured(bed, "report")
    delivery = await agent.newest()
    body = report_on(delivery, State.APPLIED, session=agent.session)
    with following(bed, "report") as progress:
        await commits.cancel_during(lambda: report(call(bed, "report", body)))
        assert await is_woken(progress)


async def test_a_revoked_token_closes_its_streams(bed: ServerBed, commits: Commits) -> None:
    token, _ = await bed.services.identity.create(TokenRequest(role=Role.VIEWER))
    with bed.services.hub.open(topic_of(1), token.id) as stream:
        await commits.cancel_during(lambda: bed.services.identity.revoke(token.id))
        assert await is_woken(stream)
    assert stream.closed


async def test_a_revoked_runtime_closes_its_watch_and_wakes_progress_streams(bed: ServerBed, commits: Commits) -> None:
    agent = await configured(bed, "revoke")
    hub, key = bed.services.hub, credentials.key_id(agent.key.public_key())
    with hub.open("revoke", key) as watch, following(bed, "revoke") as progress:
        await commits.cancel_during(lambda: revoke(call(bed, "revoke")))
        assert await is_woken(watch)
        assert await is_woken(progress)
    assert watch.closed


async def test_a_new_key_closes_the_watch_of_the_replaced_one(bed: ServerBed, commits: Commits) -> None:
    agent = await configured(bed, "enrol")
    _, secret = await bed.services.identity.create(TokenRequest(runtime="enrol"))
    new = credentials.encode_public_key(Ed25519PrivateKey.generate().public_key())
    request = EnrolRequest("enrol", secret.reveal(), new)
    with bed.services.hub.open("enrol", credentials.key_id(agent.key.public_key())) as watch:
        await commits.cancel_during(lambda: bed.services.identity.enrol(request))
        assert await is_woken(watch)
    assert watch.closed
