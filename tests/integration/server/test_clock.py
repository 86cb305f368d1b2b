"""The server's clock set forward and back: what expires, what is still believed, and what is never negative."""

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from governor.domain.reports import State
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.rest import TokenRequest
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

HOUR = 3600.0


def clock_now() -> VirtualClock:
    return VirtualClock(datetime.now(UTC))


async def works(bed: ServerBed, credential: Secret, name: str = "r1") -> bool:
    async with bed.client(credential) as client:
        try:
            await client.runtime(name)
        except GovernorError as error:
            if error.kind is not Kind.UNAUTHENTICATED:
                raise
            return False
    return True


async def test_a_token_ends_with_its_time_and_not_before_and_lives_again_when_the_clock_goes_back(
    tmp_path: Path,
) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"))
        async with bed.client() as admin:
            made = await admin.create_token(TokenRequest(role=Role.VIEWER, ttl_seconds=3600))
        token, seen = Secret(made.text), []
        for jump_s in (0, HOUR - 1, 2, -2, 10 * HOUR, -12 * HOUR):
            clock.jump(jump_s)
            seen.append(await works(bed, token))
    assert seen == [True, True, False, True, False, True]


async def test_a_runtimes_token_is_believed_within_a_minute_of_its_time(tmp_path: Path) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"))
        agent = await bed.enrol("r1")
        begun = clock.now()
        token = credentials.mint("r1", agent.key, begun)
        apart = (-61, -59, 0, credentials.LIFETIME_S + 59, credentials.LIFETIME_S + 61)
        seen = []
        for seconds in apart:
            clock.jump((begun + timedelta(seconds=seconds) - clock.now()).total_seconds())
            seen.append(await works(bed, token))
    assert seen == [False, True, True, True, False]


async def test_an_open_watch_outlives_every_jump_and_still_gets_changes(tmp_path: Path) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"), profile("p", component("s", redisHost="a")))
        agent = await bed.enrol("r1")
        async with agent.watching() as take:
            sequences = [(await take()).sequence]
            for jump_s in (24 * HOUR, -48 * HOUR):
                clock.jump(jump_s)
                await bed.apply(profile("p", component("s", redisHost=str(jump_s))))
                sequences.append((await take()).sequence)
    assert sequences == [1, 2, 3]


@pytest.mark.parametrize("state", [State.APPLIED, State.VERIFIED])
async def test_progress_never_takes_negative_time(tmp_path: Path, state: State) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"), profile("p", component("s", redisHost="a")))
        agent = await bed.enrol("r1")
        delivery = await agent.newest()
        clock.jump(-30)
        await agent.report(delivery, state)
        async with bed.client() as admin, aclosing(admin.progress(1)) as steps:
            progress = await anext(steps)
            view = await admin.runtime("r1")
    assert [each.seconds for each in progress.runtimes] == [0.0]
    assert progress.complete is (state is State.VERIFIED)
    assert view.summary.state.split(",")[0] == str(state).capitalize()


async def test_revisions_keep_their_order_when_the_clock_goes_back(tmp_path: Path) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        for step in range(3):
            await bed.apply(runtime("r1", step=str(step)))
            clock.jump(-HOUR)
        async with bed.client() as admin:
            revisions = await admin.revisions()
    assert [each.number for each in revisions] == [3, 2, 1]
    assert revisions[0].time < revisions[2].time


async def test_what_strangers_ask_for_is_not_refused_because_the_wall_clock_went_back(tmp_path: Path) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"))
        clock.jump(-HOUR)
        async with bed.client() as admin:
            created = await admin.create_token(TokenRequest(runtime="r1"))
    assert created.token.expires is not None
    assert created.token.expires > clock.now()
