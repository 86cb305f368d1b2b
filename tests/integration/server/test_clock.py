"""Jumps of the server's clock: expiry, clock skew and durations."""

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


async def is_accepted(bed: ServerBed, credential: Secret, name: str = "r1") -> bool:
    async with bed.client(credential) as client:
        try:
            await client.runtime(name)
        except GovernorError as error:
            if error.kind is not Kind.UNAUTHENTICATED:
                raise
            return False
    return True


async def test_a_token_expires_by_the_clock_and_is_valid_again_if_the_clock_is_set_back(
    tmp_path: Path,
) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"))
        async with bed.client() as admin:
            created = await admin.create_token(TokenRequest(role=Role.VIEWER, ttl_seconds=3600))
        token, seen = Secret(created.text), []
        for jump_s in (0, HOUR - 1, 2, -2, 10 * HOUR, -12 * HOUR):
            clock.jump(jump_s)
            seen.append(await is_accepted(bed, token))
    assert seen == [True, True, False, True, False, True]


async def test_a_runtime_token_is_accepted_with_up_to_a_minute_of_clock_skew(tmp_path: Path) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"))
        agent = await bed.enrol("r1")
        minted = clock.now()
        token = credentials.mint("r1", agent.key, minted)
        offsets = (-61, -59, 0, credentials.LIFETIME_S + 59, credentials.LIFETIME_S + 61)
        seen = []
        for seconds in offsets:
            clock.jump((minted + timedelta(seconds=seconds) - clock.now()).total_seconds())
            seen.append(await is_accepted(bed, token))
    assert seen == [False, True, True, True, False]


async def test_an_open_watch_survives_clock_jumps(tmp_path: Path) -> None:
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
async def test_the_duration_of_progress_is_never_negative(tmp_path: Path, state: State) -> None:
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


async def test_revisions_keep_their_order_if_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        for step in range(3):
            await bed.apply(runtime("r1", step=str(step)))
            clock.jump(-HOUR)
        async with bed.client() as admin:
            revisions = await admin.revisions()
    assert [each.number for each in revisions] == [3, 2, 1]
    assert revisions[0].time < revisions[2].time


async def test_a_join_token_can_be_created_after_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = clock_now()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"))
        clock.jump(-HOUR)
        async with bed.client() as admin:
            created = await admin.create_token(TokenRequest(runtime="r1"))
    assert created.token.expires is not None
    assert created.token.expires > clock.now()
