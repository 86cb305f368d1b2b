"""Good changes on a real sidecar: each is in use when the agent says so."""

import json
from pathlib import Path

from governor.domain.reports import State, acknowledged
from testbed.pytest_plugin import StartRedis
from testbed.redis import Redis
from tests.integration.agent_bed import component, running_agent, said_of


def store(redis: Redis) -> dict[str, object]:
    return component("statestore", "state.redis", redisHost=redis.address, redisPassword=redis.password)


async def remember(redis: Redis, value: str) -> None:
    await redis.ask("HSET", "app||who", "data", json.dumps(value), "version", "1")


async def test_a_repointed_component_is_verified_by_the_running_process_and_really_used(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    one, two = await start_redis(), await start_redis()
    await remember(one, "one")
    await remember(two, "two")
    async with running_agent(tmp_path, daprd_binary) as bed:
        assert acknowledged(await bed.deliver(store(one)))
        assert await bed.get("/v1.0/state/statestore/who") == (200, '"one"')
        process = bed.sidecar.process

        report = await bed.deliver(store(two))

        assert acknowledged(report)
        assert await bed.get("/v1.0/state/statestore/who") == (200, '"two"')
        assert bed.sidecar.process == process
        assert "state.redis initialised 1 -> 2 times" in said_of(report, "statestore").evidence[-1].text
        assert [each.state for each in report.workloads] == [State.VERIFIED]
