"""``apply.retry``: a preflight that fails only because a dependency is not reachable is repeated within the window."""

from pathlib import Path
from typing import Any

from governor.domain.documents import Preflight, Retry
from governor.domain.reports import Report, State, acknowledged, overall
from testbed.pytest_plugin import StartRedis
from testbed.redis import Redis
from tests.integration.agent.bed import WINDOW_S, AgentBed, component, running_agent


def store(name: str, redis: Redis) -> dict[str, Any]:
    access = {"redisHost": redis.address, "redisPassword": redis.password}
    return component(name, "state.redis", **access, redisMaxRetries="-1")


def is_repeated(report: Report) -> bool:
    return "the preflight is repeated in" in repr(report)


async def deferred(bed: AgentBed, sequence: int) -> Report:
    return await bed.wait_for_report(lambda report: report.sequence == sequence and is_repeated(report))


async def test_a_change_waits_for_its_dependency_as_its_policy_says(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    await redis.stop()
    async with running_agent(tmp_path, daprd_binary) as bed:
        bed.preflight = Preflight.SIDECAR
        await bed.inbox.accept(bed.sign([store("first", redis)], retry=Retry.FIRST), bed.membership)
        assert overall(await deferred(bed, 1)) is State.RECEIVED
        await redis.start()
        assert acknowledged(await bed.final_report(1))

        await redis.stop()
        second = await bed.deliver(store("first", redis), store("second", redis), retry=Retry.FIRST)
        assert overall(second) is State.FAILED
        assert not is_repeated(second)

        await bed.inbox.accept(bed.sign([store("third", redis)], retry=Retry.ALWAYS), bed.membership)
        await deferred(bed, 3)
        bed.clock.advance(WINDOW_S)
        assert overall(await bed.final_report(3)) is State.FAILED
