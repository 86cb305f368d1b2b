"""What an agent must not apply, must not touch and must not hide, on a real sidecar."""

from pathlib import Path
from typing import Any

from governor.agent.platforms.local.files import resource_file
from governor.domain.reports import State, acknowledged, overall
from testbed.pytest_plugin import StartRedis
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource, running_agent, said_of, written


async def answers(bed: AgentBed) -> bool:
    return (await bed.sidecar.read()).status is not None


async def test_a_resource_that_a_foreign_file_holds_is_refused_and_the_file_named(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        foreign = bed.resources / "mine.yaml"
        foreign.write_bytes(resource_file(component("one", "state.in-memory", owner="me"), "default").content)
        before = written(foreign)

        report = await bed.deliver(component("one", "state.in-memory"), component("two", "state.in-memory"))

        assert (said_of(report, "one").state, said_of(report, "two").state) == (State.FAILED, State.RECEIVED)
        assert "resources/mine.yaml" in said_of(report, "one").evidence[-1].text
        assert written(foreign) == before
        assert [path.name for path in bed.resources.iterdir()] == ["mine.yaml"]
        # Refused is not down: the sidecar runs with what it has.
        assert await until(lambda: answers(bed))


async def test_a_foreign_file_is_never_removed(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("one", "state.in-memory"))
        foreign = bed.resources / "component.two.yaml"
        foreign.write_bytes(resource_file(component("two", "state.in-memory"), "default").content)

        assert acknowledged(await bed.deliver())

        assert [path.name for path in bed.resources.iterdir()] == ["component.two.yaml"]


async def test_a_second_namespace_and_a_second_configuration_are_refused_by_name(
    tmp_path: Path, daprd_binary: Path
) -> None:
    elsewhere: dict[str, Any] = component("one", "state.in-memory")
    elsewhere["metadata"]["namespace"] = "elsewhere"
    configurations = [resource("Configuration", name, {}) for name in ("calm", "wild")]
    async with running_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(elsewhere, *configurations)

        assert "another namespace is not supported" in said_of(report, "one").evidence[-1].text
        assert "calm, wild" in said_of(report, "wild").evidence[-1].text
        assert list(bed.resources.iterdir()) == []


async def test_a_component_that_cannot_initialise_fails_with_the_sidecars_own_words_and_without_secrets(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    good = component("statestore", "state.redis", redisHost=redis.address, redisPassword=redis.password)
    # Dapr repeats this host in its error; as a password it must not come back.
    host = "no-such-host.invalid:6379"
    bad = component("statestore", "state.redis", redisHost=host, redisPassword="no-such-host.invalid")
    bad["spec"]["initTimeout"] = "50s"  # on a busy machine 5 s are too few
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(good)

        report = await bed.deliver(bad, component("other", "state.in-memory"))

        said = said_of(report, "statestore")
        assert said.state is State.FAILED
        assert "initialization error occurred for statestore" in said.evidence[-1].text
        assert "***:6379" in said.evidence[-1].text
        assert "no-such-host" not in repr(report)
        assert said_of(report, "other").state is not State.VERIFIED
        assert overall(report) is State.FAILED


async def test_a_failed_component_that_the_sidecar_may_ignore_is_failed_all_the_same(
    tmp_path: Path, daprd_binary: Path
) -> None:
    bad = component("statestore", "state.redis", redisHost="127.0.0.1:1")
    bad["spec"] |= {"ignoreErrors": True, "initTimeout": "50s"}  # on a busy machine 5 s are too few
    async with running_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(bad)

        assert said_of(report, "statestore").state is State.FAILED
        assert "connection refused" in said_of(report, "statestore").evidence[-1].text
        assert "rolled back to the empty bundle; verified" in report.workloads[0].evidence[-1].text
